"""A model as one page: what it predicts for a row, and how that changes with each column. No scripts, no server."""

from __future__ import annotations

import datetime
from typing import Any, NamedTuple

import numpy as np
from markupsafe import Markup
from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter

from bali.tables.html_report import wording
from bali.tables.html_report.svg import ACCENT, INK, MUTED, SECOND, inline_svg
from bali.tables.table_model import TableModel
from bali.tables.what_if import COVERAGE, Input, Row, Sweep, described, inputs_of, sweep

#: Classes and categories that a picture can hold, the most probable ones first.
MAX_CLASSES, MAX_CATEGORIES = 4, 12
#: How the curves, or points, of the first, second, … class look.
_LOOKS = (
    (ACCENT, "-", "o", "solid", "circles"),
    (SECOND, "--", "s", "dashed", "squares"),
    (INK, "-.", "^", "dash-dotted", "triangles"),
    (MUTED, ":", "D", "dotted", "diamonds"),
)


class Card(NamedTuple):
    name: str
    value: str  # in the row
    caption: str
    svg: Markup


def what_if_html(model: TableModel, row: Row) -> str:
    """One self-contained page about the neighbourhood of a row."""
    prediction = described(model, row)
    sweeps = [sweep(model, row, column) for column in inputs_of(model)]
    sweeps = [found for found in sweeps if len(found.at) > 1]
    sweeps.sort(key=_effect, reverse=True)
    probabilities = prediction.get("classes", {})
    names = sorted(probabilities, key=probabilities.get, reverse=True)[:MAX_CLASSES]
    leading = {name: model.target.classes.index(name) for name in names}
    return wording.template("what_if.html").render(
        target=model.target.name,
        prediction=prediction,
        coverage=COVERAGE,
        best=next(iter(leading), None),
        row={name: _shown(value) for name, value in row.items()},
        cards=[_card(number, found, row, leading) for number, found in enumerate(sweeps)],
        version=model.record.get("bali_version", ""),
    )


def _effect(found: Sweep) -> float:
    """How far the prediction moves along the column."""
    return float(np.ptp(found.mean, axis=0).max())


def _shown(value: float | str | None) -> str:
    if isinstance(value, float):
        return wording.number(int(value) if value == round(value) else value)
    return "not known" if value is None else value


def _card(number: int, found: Sweep, row: Row, leading: dict[str, int]) -> Card:
    """`leading` has the classes that are drawn, and their places."""
    here, is_category = row[found.column.name], found.column.kind == "category"
    caption = "Mean and 90\u202f% interval; the dotted line is the row."
    if leading:
        drawn = [f"“{wording.shortened(name, 24)}” ({_LOOKS[k][4 if is_category else 3]})" for k, name in enumerate(leading)]
        caption = f"Probability of {', '.join(drawn)}."
    if is_category:
        names = [wording.shortened(str(value), 24) for value in found.at[:MAX_CATEGORIES]]
        caption += " " + ", ".join(f"{place}: {name}" for place, name in enumerate(names, 1)) + "."

    def paint(figure: Figure) -> None:
        _draw(figure, found, here, list(leading.values()))

    label = f"Prediction against {found.column.name}"
    return Card(found.column.name, _shown(here), caption, Markup(inline_svg(f"w{number}", label, paint, (4.8, 2.9))))


def _draw(figure: Figure, found: Sweep, here: float | str | None, classes: list[int]) -> None:
    axes = figure.subplots()
    is_category = found.column.kind == "category"
    at = np.arange(1, len(found.at) + 1)[:MAX_CATEGORIES] if is_category else np.asarray(found.at)
    mean = found.mean[: len(at)]
    if found.low is not None and found.high is not None:
        low, high = found.low[: len(at)], found.high[: len(at)]
        if is_category:
            axes.errorbar(at, mean, [mean - low, high - mean], fmt="o", color=ACCENT, capsize=3)
        else:
            axes.fill_between(at, low, high, color=ACCENT, alpha=0.2, linewidth=0)
            axes.plot(at, mean, color=ACCENT)
    else:
        for k, (colour, line, marker, *_) in zip(classes, _LOOKS, strict=False):
            look = ("", marker) if is_category else (line, "")
            axes.plot(at, mean[:, k], color=colour, linestyle=look[0], marker=look[1])
        axes.set_ylim(-0.02, 1.02)
        axes.yaxis.set_major_formatter(PercentFormatter(1.0))
    if is_category:
        axes.set_xticks(at)
    place = _place(found.column, here)
    if place is not None:
        axes.axvline(place, color=MUTED, linestyle=":", linewidth=1.3)
    if found.column.kind == "date":
        ticks = np.linspace(at[0], at[-1], 4)
        first = datetime.date(1970, 1, 1)
        axes.set_xticks(ticks, [(first + datetime.timedelta(days=int(t))).isoformat() for t in ticks])


def _place(column: Input, here: Any) -> float | None:
    if here is None:
        return None
    if column.kind == "category":
        shown = column.categories[:MAX_CATEGORIES]
        return shown.index(here) + 1.0 if here in shown else None
    if column.kind == "date":
        try:
            return float((datetime.date.fromisoformat(str(here)[:10]) - datetime.date(1970, 1, 1)).days)
        except ValueError:
            return None
    return float(here)
