"""The served page and the one without a server in a real browser. Skipped where there is no Chromium."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Literal

import pytest

from bali.tables.html_report.what_if_page import what_if_html
from bali.tables.server import ModelServer
from bali.tables.table_model import load_table_model
from bali.tables.what_if import typical_row
from support.browser import NAMES, Browser, find_browser
from support.report_cases import SCRIPT

LOOKS: list[tuple[int, Literal["light", "dark"]]] = [(1280, "light"), (400, "dark")]
# Waits for an answer, moves the first slider to its end, waits for the next one: what was said before and after.
_MOVE = """(async () => {
  const said = () => document.getElementById('said').textContent;
  const settle = async () => {
    for (let i = 0; i < 300 && said() === '…'; i++) await new Promise(go => setTimeout(go, 50));
  };
  await settle();
  const before = said(), slider = document.querySelector('[type=range]');
  document.getElementById('said').textContent = '…';
  slider.value = slider.max;
  slider.dispatchEvent(new Event('input', {bubbles: true}));
  await settle();
  const field = slider.parentElement.querySelector('input').value;
  return [before, said(), Number(field) === Number(slider.value), document.querySelectorAll('#swept svg').length,
          document.getElementById('trouble').hidden];
})()"""


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    path = find_browser()
    if path is None:
        pytest.skip(f"no browser: none of {', '.join(NAMES)} is installed")
    with Browser(path, tmp_path_factory.mktemp("profile")) as running:
        yield running


@pytest.mark.parametrize(("width", "scheme"), LOOKS)
@pytest.mark.parametrize("name", ["price", "dear"])
def test_moving_an_input_moves_the_prediction(
    name: str, width: int, scheme: Literal["light", "dark"], browser: Browser, house_models: Path, tmp_path: Path
) -> None:
    model = load_table_model(house_models / name)
    model = replace(model, target=replace(model.target, name=f"{name} {SCRIPT}"))
    with ModelServer(model, port=0) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        sight = browser.look(server.address, width=width, scheme=scheme, script=_MOVE)
        server.shutdown()
    (tmp_path / "page.png").write_bytes(sight.png)
    assert sight.complaints == []
    assert set(sight.requests) == {f"{server.address}predict"}
    assert sight.overflowing == []
    before, after, follows, pictures, untroubled = sight.answer
    assert "…" not in (before, after)
    assert before != after
    assert (follows, pictures, untroubled) == (True, 1, True)


@pytest.mark.parametrize(("width", "scheme"), LOOKS)
def test_the_page_without_a_server(
    width: int, scheme: Literal["light", "dark"], browser: Browser, house_models: Path, tmp_path: Path
) -> None:
    model = load_table_model(house_models / "dear")
    page = tmp_path / "page.html"
    page.write_text(what_if_html(model, typical_row(model) | {"town": SCRIPT}), encoding="utf-8")
    sight = browser.look(page, width=width, scheme=scheme)
    (tmp_path / "page.png").write_bytes(sight.png)
    assert (sight.complaints, sight.requests, sight.overflowing) == ([], [], [])
