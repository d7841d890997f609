"""A small local page for one model: its inputs to change, and what it predicts then. The standard library's own server.

Two addresses: `/` is the page, `/predict` takes a row as JSON. The page fetches nothing from elsewhere, and a browser is
told to allow no more than that.
"""

from __future__ import annotations

import ipaddress
import json
import math
import secrets
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import numpy as np

from bali.tables.cells import MISSING
from bali.tables.errors import TableError, shown
from bali.tables.html_report.wording import template
from bali.tables.table_model import TableModel
from bali.tables.what_if import Input, checked_row, day, described, inputs_of, sweep, typical_row

#: A row of a table with very many columns is smaller.
MAX_BODY = 2**20
_SECONDS = 20.0
_LOOPBACK_NAMES = ("localhost", "127.0.0.1", "::1")
#: Classes whose curves are drawn along a column.
_N_CURVES = 4


def is_loopback(host: str) -> bool:
    """Only programs on this machine can reach it."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


class ModelServer(ThreadingHTTPServer):
    """Serves one model at (host, port); port 0 takes any that is free."""

    daemon_threads = True

    def __init__(self, model: TableModel, host: str = "127.0.0.1", port: int = 8000) -> None:
        self.model, self.inputs = model, inputs_of(model)
        self.only_here = is_loopback(host)
        super().__init__((host, port), _Handler)

    @property
    def address(self) -> str:
        host, port = str(self.server_address[0]), self.server_address[1]
        return f"http://{f'[{host}]' if ':' in host else host}:{port}/"

    def page(self, nonce: str) -> str:
        start = typical_row(self.model)
        ends = [sweep(self.model, start, column) for column in self.inputs[:20]]
        drawn = [end for found in ends for end in (found.low, found.high) if end is not None]
        values = np.concatenate(drawn) if drawn else np.zeros(1)
        return template("serve.html").render(
            target=self.model.target.name,
            inputs=[_control(column) for column in self.inputs],
            setup={
                "axis": [float(values.min()), float(values.max())],
                "first": self.inputs[0].name,
                "missing": MISSING,
            },
            where=self.address,
            nonce=nonce,
            version=self.model.record.get("bali_version", ""),
        )

    def answer(self, request: object) -> dict[str, Any]:
        """What the page asks for: the prediction of a row, and how it changes along one column."""
        if not isinstance(request, dict) or set(request) - {"row", "column"} or "row" not in request:
            raise TableError('send an object with "row" and, if wanted, "column"')
        row = checked_row(self.model, request["row"])
        name = request.get("column", self.inputs[0].name)
        column = next((each for each in self.inputs if each.name == name), None)
        if column is None:
            raise TableError(f"the model has no column {shown(name)}")
        return {"prediction": described(self.model, row), "sweep": self._sweep(row, column)}

    def _sweep(self, row: dict[str, float | str | None], column: Input) -> dict[str, Any]:
        """Of classes, the curves of those that are most probable somewhere."""
        found = sweep(self.model, row, column)
        common = {"column": column.name, "kind": column.kind, "at": found.at}
        if not self.model.target.classes:
            low, high = ([] if end is None else end.tolist() for end in (found.low, found.high))
            return common | {"mean": found.mean.ravel().tolist(), "low": low, "high": high}
        leading = np.argsort(-found.mean.max(0, initial=0.0), kind="stable")[:_N_CURVES]
        names = [self.model.target.classes[k] for k in leading]
        return common | {"lines": [found.mean[:, k].tolist() for k in leading], "classes": names}


def _control(column: Input) -> dict[str, Any]:
    """For the template: a slider's step and place, a number as it is written."""
    made = column._asdict() | {"shown": None, "step": None, "place": None}
    if column.kind == "number" and isinstance(column.start, float):
        made |= {"shown": f"{column.start:.6g}", "place": column.start}
    if column.low is not None and column.high is not None:
        exponent = math.floor(math.log10((column.high - column.low) / 100))
        step = 1.0 if column.kind == "date" else 10.0**exponent
        low, high = math.floor(column.low / step) * step, math.ceil(column.high / step) * step
        made |= {"low": f"{low:.12g}", "high": f"{high:.12g}", "step": f"{step:.12g}"}
        if column.kind == "date":
            days = np.datetime64(str(column.start), "D").astype(int)
            made |= {"place": int(days)}
            assert day(float(days)) == column.start
    return made


class _Handler(BaseHTTPRequestHandler):
    server: ModelServer
    server_version, sys_version = "bali", ""
    timeout = _SECONDS

    def do_GET(self) -> None:
        if not self._is_addressed():
            return
        if self.path.partition("?")[0] != "/":
            self._refuse(HTTPStatus.NOT_FOUND, "there is the page at / and what it asks, /predict, and nothing else")
            return
        nonce = secrets.token_urlsafe(16)
        self._send(HTTPStatus.OK, "text/html; charset=utf-8", self.server.page(nonce).encode(), nonce)

    do_HEAD = do_GET

    def do_POST(self) -> None:
        if not self._is_addressed():
            return
        if self.path != "/predict":
            self._refuse(HTTPStatus.NOT_FOUND, "send rows to /predict")
            return
        if self.headers.get_content_type() != "application/json":
            self._refuse(HTTPStatus.UNSUPPORTED_MEDIA_TYPE, "send JSON, with Content-Type: application/json")
            return
        length = self.headers.get("Content-Length", "")
        if not length.isascii() or not length.isdigit():
            self._refuse(HTTPStatus.LENGTH_REQUIRED, "the header Content-Length is needed")
            return
        if int(length) > MAX_BODY:
            self._refuse(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, f"a request may have {MAX_BODY:,} bytes at most")
            return
        try:
            answer = self.server.answer(json.loads(self.rfile.read(int(length))))
        except TableError as error:
            self._refuse(HTTPStatus.BAD_REQUEST, str(error))
        except (ValueError, RecursionError):  # what json and UTF-8 say of text that is not theirs
            self._refuse(HTTPStatus.BAD_REQUEST, "the request is not JSON")
        else:
            self._send_json(HTTPStatus.OK, answer)

    def _is_addressed(self) -> bool:
        """A page elsewhere could give its own name this machine's address; a browser then sends that name."""
        host = self.headers.get("Host", "")
        name = host.rpartition(":")[0] if host.rpartition(":")[2].isdigit() else host
        if self.server.only_here and name.strip("[]") not in _LOOPBACK_NAMES:
            self._refuse(HTTPStatus.FORBIDDEN, f"this page is at {self.server.address}")
            return False
        return True

    def _refuse(self, status: HTTPStatus, message: str) -> None:
        self.close_connection = True
        self._send_json(status, {"error": message})

    def _send_json(self, status: HTTPStatus, content: dict[str, Any]) -> None:
        self._send(status, "application/json", json.dumps(_finite(content), allow_nan=False).encode())

    def _send(self, status: HTTPStatus, kind: str, body: bytes, nonce: str = "") -> None:
        script = f"'nonce-{nonce}'" if nonce else "'none'"
        policy = f"default-src 'none'; style-src 'unsafe-inline'; img-src data:; connect-src 'self'; script-src {script}"
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Content-Security-Policy", f"{policy}; base-uri 'none'; form-action 'none'; frame-ancestors 'none'")
        self.send_header("X-Content-Type-Options", "nosniff")
        self.send_header("Referrer-Policy", "no-referrer")
        self.send_header("Cache-Control", "no-store")
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Says nothing: what somebody asks a model is nobody's business."""


def _finite(value: Any) -> Any:
    """JSON has no infinity: null stands for it, such as for the standard deviation of very heavy tails."""
    if isinstance(value, dict):
        return {name: _finite(part) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(part) for part in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
