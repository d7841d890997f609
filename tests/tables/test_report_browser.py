"""The report in a real browser: wide and narrow, light and dark. Skipped where there is no Chromium."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Literal

import matplotlib.image
import numpy as np
import pytest
from numpy.typing import NDArray

from bali.tables import html_report
from support.browser import NAMES, Browser, find_browser
from support.report_cases import CASES, hostile

#: Of text against what is behind it, as the accessibility guidelines ask for (WCAG 2, level AA).
LEAST_CONTRAST = 4.5

# Texts whose contrast is below the number that stands in for LEAST, with that contrast.
_FAINT_TEXTS = """
(() => {
  const parse = colour => {
    const [r, g, b, a = 1] = colour.match(/-?[\\d.]+(e-?\\d+)?/g).map(Number);
    const unit = colour.startsWith('color(') ? 1 : 255;
    return [r / unit, g / unit, b / unit, a];
  };
  const over = (top, below) => [0, 1, 2].map(i => top[i] * top[3] + below[i] * (1 - top[3])).concat(1);
  const behind = e => e ? over(parse(getComputedStyle(e).backgroundColor), behind(e.parentElement)) : [1, 1, 1, 1];
  const light = c => [0.2126, 0.7152, 0.0722].reduce(
    (sum, f, i) => sum + f * (c[i] <= 0.04045 ? c[i] / 12.92 : ((c[i] + 0.055) / 1.055) ** 2.4), 0);
  const found = [];
  for (const e of document.body.querySelectorAll('*')) {
    if (![...e.childNodes].some(n => n.nodeType === 3 && n.data.trim())) continue;
    if (e.closest('style') || !e.checkVisibility()) continue;
    const style = getComputedStyle(e), ground = behind(e);
    const ink = over(parse(e.closest('svg') ? style.fill : style.color), ground);
    const [dark, bright] = [light(ink), light(ground)].sort((a, b) => a - b);
    const contrast = (bright + 0.05) / (dark + 0.05);
    if (contrast < LEAST) found.push(`${e.tagName} ${e.textContent.trim().slice(0, 30)}: ${contrast.toFixed(2)}`);
  }
  return found;
})()
""".replace("LEAST", str(LEAST_CONTRAST))

Scheme = Literal["light", "dark"]


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    path = find_browser()
    if path is None:
        pytest.skip(f"no browser: none of {', '.join(NAMES)} is installed")
    with Browser(path, tmp_path_factory.mktemp("profile")) as running:
        yield running


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("reports")
    cases = {name: case() for name, case in CASES.items()}
    cases |= {f"hostile {name}": hostile(case) for name, case in cases.items()}
    paths = {name: folder / f"{name}.html" for name in cases}
    for name, path in paths.items():
        path.write_text(html_report.html(*cases[name]), encoding="utf-8")
    return paths


def pixels(png: bytes) -> NDArray[Any]:
    """(height, width, 3), from 0 to 1."""
    image: NDArray[Any] = matplotlib.image.imread(io.BytesIO(png), format="png")
    return image[..., :3]


SIGHTS = [(name, width, scheme) for name in CASES for width in (1280, 420) for scheme in ("light", "dark")]
SIGHTS += [(f"hostile {name}", *window) for name in CASES for window in ((1280, "light"), (420, "dark"))]


@pytest.mark.parametrize(("name", "width", "scheme"), SIGHTS)
def test_report(name: str, width: int, scheme: Scheme, browser: Browser, pages: dict[str, Path], tmp_path: Path) -> None:
    sight = browser.look(pages[name], width=width, scheme=scheme, script=_FAINT_TEXTS)
    (tmp_path / f"{name} {width} {scheme}.png").write_bytes(sight.png)  # to look at: pytest keeps it
    assert sight.complaints == []
    assert sight.requests == []
    assert sight.overflowing == []
    assert sight.answer == []
    image = pixels(sight.png)
    assert image.shape[1] == width
    assert image.shape[0] > 3000  # the whole page, not what fits in the window
    background = np.median(image, axis=(0, 1))
    assert (background > 0.9).all() if scheme == "light" else (background < 0.2).all()


def test_figures_follow_the_scheme_and_fill_their_card(browser: Browser, pages: dict[str, Path]) -> None:
    script = """[...document.querySelectorAll('figure svg')].map(svg => {
      const {width, height} = svg.getBoundingClientRect();
      return [width, height, svg.parentElement.clientWidth, getComputedStyle(svg.querySelector('text')).fill];
    })"""
    light = browser.look(pages["regression"], width=420, scheme="light", script=script).answer
    dark = browser.look(pages["regression"], width=420, scheme="dark", script=script).answer
    assert len(light) == len(dark) == 6
    for (width, height, card, ink), (*_, ink_in_dark) in zip(light, dark, strict=True):
        assert 0.85 * card < width <= card
        assert height == pytest.approx(width * 3.4 / 4.8, rel=0.01)
        assert ink != ink_in_dark


def test_wide_tables_scroll_in_their_own_box(browser: Browser, pages: dict[str, Path]) -> None:
    script = "[...document.querySelectorAll('.scroll')].map(box => [box.scrollWidth, box.clientWidth])"
    (rows, box_of_rows), (layers, box_of_layers) = browser.look(pages["regression"], width=420, script=script).answer
    assert rows > box_of_rows  # six columns
    assert layers == box_of_layers  # four columns have room


# --- the checks can fail ------------------------------------------------------------------------------------------------

BAD: dict[str, tuple[str, Callable[[Any], list[str]], str]] = {
    "console error": ("<script>console.error('broken', 7)</script>", lambda s: s.complaints, "broken 7"),
    "exception": ("<script>undefined_function()</script>", lambda s: s.complaints, "undefined_function is not defined"),
    "failed request": ("<img src='http://127.0.0.1:9/x.png'>", lambda s: s.complaints, "not loaded"),
    "request": ("<img src='http://127.0.0.1:9/x.png'>", lambda s: s.requests, "http://127.0.0.1:9/x.png"),
    "refused script": (
        "<meta http-equiv='Content-Security-Policy' content=\"default-src 'none'\"><script>1</script>",
        lambda s: s.complaints,
        "Content Security Policy",
    ),
    "too wide": ("<div id='bar' style='width: 3000px'>x</div>", lambda s: s.overflowing, "div#bar"),
    "faint text": ("<p style='color: #aaa; background: #fff'>pale</p>", lambda s: s.answer, "P pale: 2.32"),
}


@pytest.mark.parametrize(("body", "part", "expected"), BAD.values(), ids=BAD.keys())
def test_what_is_wrong_with_a_page_is_seen(
    body: str, part: Callable[[Any], list[str]], expected: str, browser: Browser, tmp_path: Path
) -> None:
    page = tmp_path / "page.html"
    page.write_text(f"<!DOCTYPE html><html><body>{body}</body></html>", encoding="utf-8")
    found = part(browser.look(page, script=_FAINT_TEXTS))
    assert any(expected in text for text in found), found


def test_a_good_page_is_not_complained_about(browser: Browser, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    scrolling = "<div style='overflow-x: auto'><div style='width: 3000px'>wide</div></div>"
    page.write_text(f"<!DOCTYPE html><html><body><p>Hello</p>{scrolling}</body></html>", encoding="utf-8")
    sight = browser.look(page, width=420, script=_FAINT_TEXTS)
    assert (sight.complaints, sight.requests, sight.overflowing, sight.answer) == ([], [], [], [])
