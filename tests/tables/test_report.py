"""The report as text: what it says, that it says what the record says, and that it is one harmless page."""

from __future__ import annotations

import copy
import functools
import itertools
import json
import re
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
import pytest

import bali
from bali.tables import html_report
from bali.tables.html_report.wording import number, percent
from support.report_cases import CASES, MARKUP, SCRIPT, Case, binary, hostile, multiclass, regression

each_case = pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
#: Elements that have no end tag.
VOID = {"meta", "link", "img", "br", "hr", "input"}


class Page(HTMLParser):
    """A page taken apart; raises where tags are not closed in order."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.source = text
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str]]] = []
        self.texts: list[tuple[str, str]] = []  # innermost element and its text
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, {name: value or "" for name, value in attrs}))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, {name: value or "" for name, value in attrs}))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if data.strip():
            text = re.sub(r"[ \n]+", " ", data).strip(" ")
            self.texts.append((self.open[-1] if self.open else "", text))

    def all(self, tag: str) -> list[dict[str, str]]:
        return [attributes for name, attributes in self.tags if name == tag]

    def text(self, *tags: str) -> list[str]:
        return [text for tag, text in self.texts if not tags or tag in tags]


@functools.cache
def page_of(case: Callable[[], Case]) -> Page:
    return Page(html_report.html(*case()))


# --- contents ---------------------------------------------------------------------------------------------------------

HEADINGS = [
    "In short",
    "What was trained",
    "Learning",
    "Can its uncertainty be trusted?",
    "Predictions and the truth",
    "Does it know when it does not know?",
    "Most uncertain rows",
    "Layer health",
]
PICTURES = {
    "regression": [
        "Learning curve",
        "Do the intervals hold what they promise?",
        "Where true values fall in their prediction",
        "Predicted against true",
        "Residuals",
        "Uncertainty against error",
    ],
    "binary": [
        "Learning curve",
        "Do the probabilities hold what they promise?",
        "ROC curve",
        "Uncertainty against error",
    ],
    "multiclass": ["Learning curve", "Do the probabilities hold what they promise?", "Uncertainty against error"],
}


@pytest.mark.parametrize("name", CASES)
def test_every_section_and_figure_is_there(name: str) -> None:
    page = page_of(CASES[name])
    assert page.text("h2") == HEADINGS
    pictures = page.all("svg")
    assert [picture["aria-label"].split(". ")[0].split("? ")[0].rstrip("?") for picture in pictures] == [
        title.rstrip("?") for title in PICTURES[name]
    ]
    assert all(picture["role"] == "img" and "viewbox" in picture for picture in pictures)
    assert ("Confusion matrix" in page.text("h3")) == (name != "regression")


@each_case
def test_what_was_trained(case: Any) -> None:
    model, record = case()
    page = page_of(case)
    facts = " | ".join(page.text("dd"))
    assert "houses.csv" in facts
    assert "180: 120 to learn from, 60 held out" in facts
    sizes = model.recipe_.stacks[0].layer_sizes  # what was kept: a network, or a linear model
    assert " → ".join(map(str, sizes)) in facts
    assert ("gelu" if len(sizes) > 2 else "linear") in facts
    titles = page.text("dt")
    assert "Networks" not in titles  # once is enough
    assert len(set(titles)) == len(titles)
    assert "60 steps, 2 seconds" in facts
    assert all(feature in page.text("li") for feature in record["features"])
    assert record["notes"][0] in page.text("li")


@each_case
def test_numbers_are_those_of_the_record(case: Any) -> None:
    _, record = case()
    shown = {data["data-metric"]: float(data["value"]) for data in page_of(case).all("data")}
    assert shown == record["metrics"]


@each_case
def test_most_uncertain_rows_come_first(case: Any) -> None:
    _, record = case()
    held = record["holdout"]
    uncertainty = held["std"] if record["task"] == "regression" else held["entropy"]
    order = np.argsort(uncertainty)[::-1][:12]
    rows = [text for text in page_of(case).text("th") if text.isdigit()]
    assert rows == [str(held["row"][i]) for i in order]


def test_cells_of_an_uncertain_row() -> None:
    _, record = regression()
    held = record["holdout"]
    top = int(np.argmax(held["std"]))
    cells = page_of(regression).text("td")
    first = cells[:6]
    assert first[0] == number(held["mean"][top])
    assert first[1] == f"{number(held['low'][top])} to {number(held['high'][top])}"
    assert first[2] == number(held["y"][top])
    assert first[3] == ("yes" if held["low"][top] <= held["y"][top] <= held["high"][top] else "no")
    assert first[5] == percent(held["epistemic"][top] / held["std"][top] ** 2)


def test_confusion_matrix_counts_every_row() -> None:
    _, record = multiclass()
    held = record["holdout"]
    predicted = np.argmax(held["probabilities"], 1)
    cells = page_of(multiclass).text("td")
    start = cells.index("True class") + 1
    shown = np.array([int(cell) for cell in cells[start : start + 9]]).reshape(3, 3)
    expected = np.zeros((3, 3), dtype=int)
    np.add.at(expected, (np.array(held["y"]), predicted), 1)
    np.testing.assert_array_equal(shown, expected)


def test_layer_health_and_its_problems() -> None:
    model, record = regression()
    page = Page(html_report.html(model, record))
    assert "Nothing is off." in page.text("p")
    for layer in model.health().layers:
        assert f"{layer.effective_dof:.1f} of {layer.n_inputs}" in page.text("td")
    refusing = copy.copy(model)
    refusing.refused_ = 3
    page = Page(html_report.html(refusing, record))
    assert "3 steps would have ruined the fit" in refusing.health().problems[0]
    assert refusing.health().problems[0] in page.text("span")
    assert "Nothing is off." not in page.text("p")


def test_without_held_out_rows() -> None:
    model, record = regression()
    page = Page(html_report.html(model, record | {"holdout": {}, "metrics": {}, "n_holdout": 0}))
    assert page.text("h2") == [HEADINGS[0], HEADINGS[1], HEADINGS[2], HEADINGS[-1]]
    assert any("nothing can be said" in text for text in page.text("span"))


def test_many_classes_are_listed_by_confusion() -> None:
    model, record = binary()
    n, n_classes = 60, 25
    rng = np.random.default_rng(0)
    probabilities = rng.dirichlet(np.ones(n_classes), n)
    y = probabilities.argmax(1)
    y[:7], probabilities[:7] = 3, np.eye(n_classes)[4]
    held = record["holdout"] | {
        "y": y.tolist(),
        "probabilities": probabilities.tolist(),
        "classes": [f"c{i}" for i in range(n_classes)],
    }
    page = Page(html_report.html(model, record | {"holdout": held}))
    assert "Confusion matrix" not in page.text("h3")
    first = page.text("td", "th").index("Predicted instead") + 2
    assert page.text("td", "th")[first : first + 3] == ["c3", "c4", "7"]


def test_classes_may_be_positions_or_text() -> None:
    model, record = binary()
    held = record["holdout"]
    by_name = held | {"y": [held["classes"][i] for i in held["y"]]}
    assert html_report.html(model, record | {"holdout": by_name}) == html_report.html(model, record)


def test_lists_of_different_length_are_refused() -> None:
    model, record = regression()
    held = record["holdout"] | {"std": record["holdout"]["std"][:-1]}
    with pytest.raises(ValueError, match="60 held-out rows and 59 values of 'std'"):
        html_report.html(model, record | {"holdout": held})


# --- one harmless page ------------------------------------------------------------------------------------------------


@each_case
def test_names_are_text_and_nothing_else(case: Any) -> None:
    model, record = hostile(case())
    page = Page(html_report.html(model, record))
    assert page.all("script") == []
    assert page.all("img") == []
    assert [name for _, attributes in page.tags for name in attributes if name.startswith("on")] == []
    texts = " ".join(page.text())
    assert texts.count(SCRIPT) > 5
    assert MARKUP in texts
    assert page.text("title") == [f"{record['target']} – BALI report"]


@each_case
def test_nothing_is_fetched(case: Any) -> None:
    page = page_of(case)
    assert page.all("script") == []
    assert {key for _, attributes in page.tags for key in attributes} & {"src", "srcset", "action", "background"} == set()
    links = [attributes["href"] for _, attributes in page.tags if "href" in attributes]
    assert links
    assert all(link.startswith("#") or link == "data:," for link in links)
    assert re.findall(r"https?:|//[a-z]|@import|url\((?!#)", page.source) == []


@each_case
def test_ids_are_unique_and_references_lead_somewhere(case: Any) -> None:
    page = page_of(case)
    ids = [attributes["id"] for _, attributes in page.tags if "id" in attributes]
    assert len(ids) == len(set(ids))
    references = re.findall(r'href="#([^"]+)"|url\(#([^)]+)\)|aria-labelledby="([^"]+)"', page.source)
    assert references
    assert {one or two or three for one, two, three in references} <= set(ids)


@each_case
def test_figures_use_the_colours_and_the_font_of_the_page(case: Any) -> None:
    """Otherwise they could not be read both light and dark."""
    page = page_of(case).source
    drawn = re.findall(r"<svg.*?</svg>", page, re.DOTALL)
    style = re.findall(r"<style>(.*?)</style>", page, re.DOTALL)[0]
    light, dark = style.split("prefers-color-scheme: dark")
    for svg in drawn:
        colours = re.findall(r"(?:fill|stroke): ([^;\"]+)", svg)
        assert {colour for colour in colours if colour != "none"} <= {f"var(--{name})" for name in _variables(dark)}
        assert set(re.findall(r"font-family: ([^;\"]+)", svg)) <= {"var(--font)"}
        assert re.findall(r"#[0-9a-f]{6}|rgb\(", svg) == []
    assert _variables(dark) <= _variables(light)


def _variables(css: str) -> set[str]:
    return set(re.findall(r"--([a-z-]+):", css))


def test_accessible_basics() -> None:
    page = page_of(binary)
    assert page.all("html")[0]["lang"] == "en"
    assert len(page.all("title")) == len(page.all("h1")) == len(page.all("main")) == 1
    assert all(th.get("scope") in ("row", "col") for th in page.all("th"))
    levels = [int(tag[1]) for tag, _ in page.tags if re.fullmatch("h[1-6]", tag)]
    assert all(deeper - level <= 1 for level, deeper in itertools.pairwise(levels))


@each_case
def test_the_same_page_again(case: Any, tmp_path: Path) -> None:
    """From the record as JSON and the model as a file, which is what `bali report` has."""
    model, record = case()
    page = page_of(case).source
    model.save(tmp_path / "model.bali")
    assert html_report.html(bali.load(tmp_path / "model.bali"), json.loads(json.dumps(record))) == page


def test_settings_of_matplotlib_are_neither_used_nor_changed() -> None:
    page = page_of(regression).source
    with mpl.rc_context({"font.size": 30.0, "axes.grid": False, "svg.fonttype": "path"}):
        before = dict(mpl.rcParams)
        assert html_report.html(*regression()) == page
        assert dict(mpl.rcParams) == before
