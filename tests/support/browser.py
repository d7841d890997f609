"""A headless Chromium for the tests of the report, driven by the DevTools protocol over a pair of pipes.

Messages are JSON, each ended by a zero byte, so neither a socket nor a library is needed. One browser serves a whole
test run; every page that it opens is looked at in windows of a given width, light or dark.
"""

from __future__ import annotations

import base64
import json
import os
import select
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-quic",
    "--disable-extensions",
    "--hide-scrollbars",
    "--remote-debugging-pipe",
)
#: Seconds within which the browser must answer; a busy machine is slow to start one.
PATIENCE = 60.0
# Chromium reads commands from descriptor 3 and writes to 4.
_LAUNCHER = """
import os, sys
read, write = int(sys.argv[1]), int(sys.argv[2])
read, write = os.dup(read), os.dup(write)
while read in (3, 4): read = os.dup(read)
while write in (3, 4): write = os.dup(write)
os.dup2(read, 3)
os.dup2(write, 4)
os.execv(sys.argv[3], sys.argv[3:])
"""
# Elements that reach beyond the window, unless something around them scrolls.
_OVERFLOWING = """
(() => {
  const clips = e => ['auto', 'scroll', 'hidden'].includes(getComputedStyle(e).overflowX);
  const scrolls = e => e && (clips(e) || scrolls(e.parentElement));
  const wide = [...document.body.querySelectorAll('*')].filter(
    e => e.getBoundingClientRect().right > innerWidth + 1 && !scrolls(e.parentElement) && !e.closest('svg *'));
  const names = wide.map(e => e.tagName.toLowerCase() + (e.id ? '#' + e.id : ''));
  return document.documentElement.scrollWidth > innerWidth + 1 ? ['page', ...names] : names;
})()
"""


def find_browser() -> str | None:
    return next((path for name in NAMES if (path := shutil.which(name))), None)


@dataclass
class Sight:
    """What was seen of a page."""

    png: bytes
    complaints: list[str]  # console errors and warnings, uncaught exceptions, refused or failed requests
    requests: list[str]  # everything but the page itself and what it holds as data
    overflowing: list[str]  # elements wider than the window
    answer: Any = None  # of the script that was asked


@dataclass
class Browser:
    path: str
    profile: Path  # a fresh folder
    _events: list[dict[str, Any]] = field(default_factory=list)
    _count: int = 0
    _buffer: bytes = b""

    def __enter__(self) -> Self:
        commands, self._to = os.pipe()
        self._from, answers = os.pipe()
        arguments = [self.path, *FLAGS, f"--user-data-dir={self.profile}", "about:blank"]
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-c", _LAUNCHER, str(commands), str(answers), *arguments],
            pass_fds=(commands, answers),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(commands)
        os.close(answers)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        try:
            if self._process.poll() is None:
                self._ask("Browser.close")
                self._process.wait(PATIENCE)
        except (OSError, RuntimeError, subprocess.TimeoutExpired):
            self._process.kill()
            self._process.wait()
        finally:
            os.close(self._to)
            os.close(self._from)

    def look(
        self, page: Path | str, *, width: int = 1280, scheme: Literal["light", "dark"] = "light", script: str | None = None
    ) -> Sight:
        """Open a file or an address and look at it from top to bottom.

        `script` is an expression whose value, or what its promise comes to, is returned too.
        """
        address = page if isinstance(page, str) else page.as_uri()
        with self._tab() as tab:
            for domain in ("Page", "Runtime", "Log", "Network"):
                self._ask(f"{domain}.enable", tab)
            size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False}
            self._ask("Emulation.setDeviceMetricsOverride", tab, **size)
            features = [{"name": "prefers-color-scheme", "value": scheme}]
            self._ask("Emulation.setEmulatedMedia", tab, features=features)
            self._events.clear()
            self._ask("Page.navigate", tab, url=address)
            while not any(event["method"] == "Page.loadEventFired" for event in self._events):
                self._events.append(self._read())
            overflowing = self._evaluate(_OVERFLOWING, tab)
            answer = None if script is None else self._evaluate(script, tab)
            picture = self._ask("Page.captureScreenshot", tab, format="png", captureBeyondViewport=True)
            return Sight(
                png=base64.b64decode(picture["data"]),
                complaints=[text for event in self._events if (text := _complaint(event))],
                requests=[url for event in self._events if (url := _request(event)) and url != address],
                overflowing=overflowing,
                answer=answer,
            )

    @contextmanager
    def _tab(self) -> Iterator[str]:
        target = self._ask("Target.createTarget", url="about:blank")["targetId"]
        try:
            yield self._ask("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        finally:
            self._ask("Target.closeTarget", targetId=target)

    def _evaluate(self, expression: str, tab: str) -> Any:
        answer = self._ask("Runtime.evaluate", tab, expression=expression, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in answer:
            raise RuntimeError(f"the test's own script failed: {answer['exceptionDetails']}")
        return answer["result"].get("value")

    def _ask(self, method: str, tab: str | None = None, **parameters: Any) -> dict[str, Any]:
        self._count += 1
        message = {"id": self._count, "method": method, "params": parameters} | ({"sessionId": tab} if tab else {})
        os.write(self._to, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._read()
            if answer.get("id") == self._count:
                if "error" in answer:
                    raise RuntimeError(f"{method}: {answer['error']}")
                result: dict[str, Any] = answer["result"]
                return result
            if "method" in answer:
                self._events.append(answer)

    def _read(self) -> dict[str, Any]:
        end = time.monotonic() + PATIENCE
        while b"\0" not in self._buffer:
            ready, _, _ = select.select([self._from], [], [], max(0.0, end - time.monotonic()))
            received = os.read(self._from, 1 << 20) if ready else b""
            if not received:
                raise RuntimeError(f"{self.path} " + ("ended unexpectedly" if ready else f"is silent for {PATIENCE:g} s"))
            self._buffer += received
        message, self._buffer = self._buffer.split(b"\0", 1)
        read: dict[str, Any] = json.loads(message)
        return read


def _complaint(event: dict[str, Any]) -> str | None:
    details = event.get("params", {})
    match event["method"]:
        case "Runtime.consoleAPICalled" if details["type"] in ("error", "warning", "assert"):
            return " ".join(str(part.get("value", part.get("description"))) for part in details["args"])
        case "Runtime.exceptionThrown":
            return str(
                details["exceptionDetails"].get("exception", {}).get("description", details["exceptionDetails"]["text"])
            )
        case "Log.entryAdded" if details["entry"]["level"] in ("error", "warning"):
            return str(details["entry"]["text"])
        case "Network.loadingFailed":
            return f"not loaded: {details['errorText']}"
    return None


def _request(event: dict[str, Any]) -> str | None:
    if event["method"] != "Network.requestWillBeSent":
        return None
    url = str(event["params"]["request"]["url"])
    return None if url.startswith("data:") else url
