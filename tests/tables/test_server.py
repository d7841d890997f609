"""`bali serve`: real requests to a running server, good ones and bad ones."""

from __future__ import annotations

import http.client
import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from bali.tables.server import MAX_BODY, ModelServer, is_loopback
from bali.tables.table_model import load_table_model
from support.houses import houses, run

ROW: dict[str, Any] = {"size": 120.0, "rooms": 4, "town": "Ulm", "garden": "True", "sold": "2024-05-01"}


@pytest.fixture(scope="module")
def servers(house_models: Path) -> Iterator[dict[str, ModelServer]]:
    started = {name: ModelServer(load_table_model(house_models / name), port=0) for name in ("price", "dear")}
    for server in started.values():
        threading.Thread(target=server.serve_forever, daemon=True).start()
    yield started
    for server in started.values():
        server.shutdown()
        server.server_close()


def ask(server: ModelServer, method: str, path: str, body: Any = None, **headers: str) -> tuple[int, Any, Any]:
    """Status, headers and content of an answer; JSON is read."""
    connection = http.client.HTTPConnection("127.0.0.1", server.server_address[1], timeout=30)
    content = body if isinstance(body, bytes | None) else json.dumps(body).encode()
    named = {"Content-Type": "application/json"} | {name.replace("_", "-"): value for name, value in headers.items()}
    connection.request(method, path, content, named)
    response = connection.getresponse()
    text = response.read()
    kind = response.headers["Content-Type"]
    connection.close()
    return response.status, response.headers, json.loads(text) if kind == "application/json" else text.decode()


def test_a_prediction_is_that_of_the_command(servers: dict[str, ModelServer], house_models: Path, tmp_path: Path) -> None:
    status, _, answer = ask(servers["price"], "POST", "/predict", {"row": ROW, "column": "size"})
    assert status == 200
    houses(1).assign(**ROW).to_csv(tmp_path / "one.csv", index=False)
    out = tmp_path / "out.csv"
    assert run("predict", house_models / "price", tmp_path / "one.csv", "--out", out).exit_code == 0
    header, values = (line.split(",") for line in out.read_text().splitlines())
    written = dict(zip(header, map(float, values), strict=True))
    told = answer["prediction"]
    for ours, theirs in {
        "mean": "mean",
        "std": "std",
        "low": "lower",
        "high": "upper",
        "epistemic_std": "epistemic_std",
    }.items():
        assert told[ours] == pytest.approx(written[theirs], rel=1e-6)
    at, density = zip(*told["density"], strict=True)
    area = sum((b - a) * (f + g) / 2 for a, b, f, g in zip(at, at[1:], density, density[1:], strict=False))
    assert area == pytest.approx(1.0, abs=0.02)


def test_a_sweep_goes_through_the_row(servers: dict[str, ModelServer]) -> None:
    _, _, answer = ask(servers["price"], "POST", "/predict", {"row": ROW, "column": "size"})
    sweep = answer["sweep"]
    assert (sweep["column"], sweep["kind"], len(sweep["at"])) == ("size", "number", 41)
    assert all(low < mean < high for low, mean, high in zip(sweep["low"], sweep["mean"], sweep["high"], strict=True))
    assert sweep["mean"][-1] > sweep["mean"][0]  # larger houses are dearer
    nearest = min(range(41), key=lambda i: abs(sweep["at"][i] - ROW["size"]))
    assert sweep["mean"][nearest] == pytest.approx(answer["prediction"]["mean"], rel=0.05)


def test_classes_dates_categories_and_what_is_not_known(servers: dict[str, ModelServer]) -> None:
    for column in ("sold", "town", "garden"):
        status, _, answer = ask(servers["dear"], "POST", "/predict", {"row": ROW | {"size": None}, "column": column})
        assert status == 200
        assert sum(answer["prediction"]["classes"].values()) == pytest.approx(1.0)
        assert set(answer["sweep"]["classes"]) == {"yes", "no"}
        assert len(answer["sweep"]["lines"][0]) == len(answer["sweep"]["at"])
    assert ask(servers["dear"], "POST", "/predict", {"row": ROW | {"town": "Rom"}})[2]["prediction"]["notes"] == [
        "'town': 1 row with a category the model does not know ('Rom'), treated as none of the known"
    ]


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b"{", "not JSON"),
        (b"\xff\xfe", "not JSON"),
        (b"[" * 100_000, "not JSON"),
        ([1, 2], 'an object with "row"'),
        ({"row": ROW, "other": 1}, 'an object with "row"'),
        ({"row": [1]}, "a row is an object"),
        ({"row": {}}, "a value of 'size', 'rooms', 'town', 'garden', 'sold' is missing"),
        ({"row": ROW | {"x": 1}}, "no column 'x'"),
        ({"row": ROW, "column": "x"}, "no column 'x'"),
        ({"row": ROW, "column": ["x"]}, "no column"),
        ({"row": ROW | {"size": "large"}}, "'size' holds numbers, and 'large' is none"),
        ({"row": ROW | {"size": [1]}}, "needs a number, a text or null"),
        ({"row": ROW | {"size": True}}, "needs a number, a text or null"),
        (json.dumps({"row": ROW | {"size": 1}}).replace(": 1,", ": NaN,").encode(), "finite"),
        (json.dumps({"row": ROW | {"size": 1}}).replace(": 1,", ": Infinity,").encode(), "finite"),
        ({"row": ROW | {"size": 1e300}}, "size"),
        ({"row": ROW | {"sold": "yesterday"}}, "'sold' holds dates, but 'yesterday'"),
    ],
)
def test_bad_requests_are_told(body: Any, message: str, servers: dict[str, ModelServer]) -> None:
    status, _, answer = ask(servers["price"], "POST", "/predict", body)
    assert status == 400
    assert message in answer["error"]


def test_other_requests_are_refused(servers: dict[str, ModelServer]) -> None:
    server = servers["price"]
    assert ask(server, "GET", "/etc/passwd")[0] == 404
    assert ask(server, "GET", "/../model.bali")[0] == 404
    assert ask(server, "POST", "/", {"row": ROW})[0] == 404
    assert ask(server, "POST", "/predict", {"row": ROW}, Content_Type="text/plain")[0] == 415
    assert ask(server, "PUT", "/predict", {"row": ROW})[0] == 501
    assert ask(server, "POST", "/predict", b"{}", Content_Length=str(MAX_BODY + 1))[0] == 413
    assert ask(server, "POST", "/predict", b"{}", Content_Length="-1")[0] == 411


def test_a_page_elsewhere_cannot_take_its_place(servers: dict[str, ModelServer]) -> None:
    """A name that somebody else gave to this machine's address is refused (DNS rebinding)."""
    for method, path in (("GET", "/"), ("POST", "/predict")):
        status, _, answer = ask(servers["price"], method, path, {"row": ROW}, Host="evil.example:80")
        assert status == 403
        assert "127.0.0.1" in answer["error"]
    assert ask(servers["price"], "GET", "/", Host=f"localhost:{servers['price'].server_address[1]}")[0] == 200


def test_the_page_allows_nothing_from_elsewhere(servers: dict[str, ModelServer]) -> None:
    status, headers, page = ask(servers["price"], "GET", "/")
    assert status == 200
    policy = headers["Content-Security-Policy"]
    assert "default-src 'none'" in policy
    assert "frame-ancestors 'none'" in policy
    assert "http" not in policy
    assert "http://" not in page.replace(servers["price"].address, "").replace("http://www.w3.org/2000/svg", "")
    for name in ROW:
        assert f'data-column="{name}"' in page
    assert page.count('<input type="range"') == 3
    assert 'type="date"' in page


def test_which_addresses_are_this_machine_alone() -> None:
    assert all(is_loopback(host) for host in ("127.0.0.1", "127.3.2.1", "::1", "localhost"))
    assert not any(is_loopback(host) for host in ("0.0.0.0", "::", "192.168.0.7", "example.org"))


def test_a_port_that_is_taken_is_told(servers: dict[str, ModelServer], house_models: Path) -> None:
    done = run("serve", house_models / "price", "--port", servers["price"].server_address[1])
    assert done.exit_code == 1
    assert "name another with --host or --port" in done.output


@pytest.mark.parametrize(("host", "warned"), [("127.0.0.1", False), ("0.0.0.0", True)])
def test_the_command_says_where_and_who_can_come_in(
    host: str, warned: bool, house_models: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(_: ModelServer) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(ModelServer, "serve_forever", interrupted)
    opened: list[str] = []
    monkeypatch.setattr("typer.launch", opened.append)
    done = run("serve", house_models / "price", "--port", 0, "--host", host, "--open")
    assert done.exit_code == 0
    assert f"open http://{host}:" in done.output
    assert ("no password" in done.output) is warned
    assert len(opened) == 1
