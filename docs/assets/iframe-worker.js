// Browsers start no worker for a page that is opened as a file. There the search, which wants one, runs in a hidden frame.
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(address) {
      super();
      const frame = document.createElement("iframe");
      frame.hidden = true;
      frame.srcdoc = "<!doctype html><body>";
      this.frame = frame;
      this.started = new Promise((started, failed) => {
        frame.onload = () => {
          const inside = frame.contentWindow;
          inside.postMessage = data => this.dispatchEvent(new MessageEvent("message", {data}));
          const script = inside.document.createElement("script");
          script.onload = () => started(inside);
          script.onerror = failed;
          script.src = address;
          inside.document.body.append(script);
        };
      });
      document.body.append(frame);
    }
    postMessage(data) {
      this.started.then(inside => inside.dispatchEvent(new inside.MessageEvent("message", {data})));
    }
    terminate() {
      this.frame.remove();
    }
  };
}
