"""A small server on this machine that has a set's original files, and can misbehave as real ones do."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


@dataclass
class Server:
    """`files` by path. The next `cuts` answers stop after `cut_at` bytes; paths in `statuses` answer with that status."""

    url: str
    files: dict[str, bytes] = field(default_factory=dict)
    knows_ranges: bool = True
    cuts: int = 0
    cut_at: int = 0
    statuses: dict[str, int] = field(default_factory=dict)
    asked: list[tuple[str, str | None]] = field(default_factory=list)  # path and range of every request

    def ranges(self) -> list[str | None]:
        return [asked_range for _, asked_range in self.asked]


@contextmanager
def running_server() -> Iterator[Server]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            path, asked_range = self.path.lstrip("/"), self.headers["Range"]
            state.asked.append((path, asked_range))
            if path in state.statuses or path not in state.files:
                self.send_error(state.statuses.get(path, 404))
                return
            content, start = state.files[path], 0
            if asked_range and state.knows_ranges:
                start = int(asked_range.removeprefix("bytes=").removesuffix("-"))
                if start >= len(content):
                    self.send_response(416)
                    self.send_header("Content-Range", f"bytes */{len(content)}")
                    self.send_header("Content-Length", "0")
                    self.end_headers()
                    return
                self.send_response(206)
                self.send_header("Content-Range", f"bytes {start}-{len(content) - 1}/{len(content)}")
            else:
                self.send_response(200)
            rest = content[start:]
            self.send_header("Content-Length", str(len(rest)))
            self.end_headers()
            if state.cuts:
                state.cuts -= 1
                rest = rest[: state.cut_at]
                self.close_connection = True
            self.wfile.write(rest)

        def log_message(self, format: str, *args: object) -> None:
            """Nothing on standard error."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        state = Server(f"http://127.0.0.1:{server.server_port}")
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield state
        finally:
            server.shutdown()
            thread.join()
