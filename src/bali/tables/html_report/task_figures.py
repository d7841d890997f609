"""Figures of single tasks and of single columns: rootograms, survival curves, partial dependence. See `report_figures`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter

from bali.tables.html_report.report_figures import legend, value_axes
from bali.tables.html_report.svg import ACCENT, INK, SECOND, Picture, picture
from bali.tables.html_report.wording import shortened


def rootogram(figure: Figure, counts: Mapping[str, Any]) -> None:
    """Bars of what was observed hang from the curve of what was expected; square roots make small numbers visible."""
    axes = figure.subplots()
    at = np.asarray(counts["at"], dtype=float)
    width = at[1] - at[0] if len(at) > 1 else 1.0
    expected, observed = (np.sqrt(counts[name]) for name in ("expected", "observed"))
    axes.bar(at, observed, 0.85 * width, bottom=expected - observed, color=ACCENT, alpha=0.75, label="rows observed")
    axes.plot(at, expected, color=SECOND, marker="o", markersize=3.5, label="rows expected")
    axes.axhline(0.0, color=INK, linestyle="--", linewidth=1.0)
    axes.grid(visible=False, axis="x")
    axes.set_xlabel("count")
    axes.set_ylabel("square root of rows")
    legend(figure)


def survival(figure: Figure, curves: Mapping[str, Any]) -> None:
    """Mean predicted survival of each group of rows, and Kaplan and Meier's of the same rows."""
    axes = figure.subplots()
    times = np.asarray(curves["times"])
    styles = ("-", "--", ":")
    for number, group in enumerate(curves["groups"]):
        style, is_first = styles[number % len(styles)], number == 0
        axes.plot(times, group["predicted"], color=ACCENT, linestyle=style, label="predicted" if is_first else None)
        label = "observed" if is_first else None
        axes.step(times, group["observed"], color=SECOND, linestyle=style, linewidth=1.2, where="post", label=label)
    axes.set_ylim(-0.02, 1.02)
    axes.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
    axes.set_xlabel("time")
    axes.set_ylabel("not over yet")
    legend(figure)


def partial_dependence(figure: Figure, effect: Mapping[str, Any], what: str) -> None:
    axes = figure.subplots()
    place = _places(axes, effect)
    mean, low, high = (np.asarray(effect[name]) for name in ("mean", "low", "high"))
    if effect["kind"] == "category":
        axes.vlines(place, low, high, color=ACCENT, alpha=0.4, linewidth=4.0, label="networks disagree by")
        axes.plot(place, mean, color=ACCENT, linestyle="", marker="o", markersize=6, label="average")
    else:
        axes.fill_between(place, low, high, color=ACCENT, alpha=0.2, linewidth=0, label="networks disagree by")
        axes.plot(place, mean, color=ACCENT, marker="o", markersize=3.5, label="average")
    value_axes(axes)
    axes.set_ylabel(what)
    legend(figure)


def noise_by_column(figure: Figure, effect: Mapping[str, Any]) -> None:
    axes = figure.subplots()
    place = _places(axes, effect)
    style = "" if effect["kind"] == "category" else "-"
    axes.plot(place, effect["noise"], color=SECOND, marker="o", markersize=5, linestyle=style)
    axes.set_ylim(0.0, 1.15 * max(effect["noise"]))
    value_axes(axes)
    axes.set_ylabel("noise (standard deviation)")


def _places(axes: Axes, effect: Mapping[str, Any]) -> Any:
    """Where points are drawn; categories are numbered, as their names stand in the caption."""
    if effect["kind"] != "category":
        axes.set_xlabel("days since 1970" if effect["kind"] == "date" else "value of the column")
        return np.asarray(effect["at"], dtype=float)
    place = np.arange(1, len(effect["at"]) + 1)
    axes.set_xticks(place)
    axes.set_xlim(0.5, len(place) + 0.5)
    axes.set_xlabel("category")
    axes.grid(visible=False, axis="x")
    return place


# --- pictures of what each column does: to the prediction, and to the noise where that depends on it ------------------


#: Columns that are drawn, those that matter most.
MAX_DRAWN = 12
#: Noise is drawn against a column along which it changes by this factor.
NOISE_CHANGES = 1.3


def effects_of_columns(record: Mapping[str, Any]) -> list[Picture]:
    found = []
    for number, effect in enumerate(record.get("columns", [])[:MAX_DRAWN]):
        name, places = shortened(effect["name"]), _categories(effect)
        caption = f"{_what(record, effect)}, averaged over rows that differ in all other columns.{places}"
        found.append(picture(f"effect-{number}", name, caption, partial_dependence, effect, _axis(record, effect)))
        noise = effect.get("noise")
        if noise and max(noise) > NOISE_CHANGES * min(noise):
            caption = f"The noise that is predicted, averaged in the same way.{places}"
            found.append(picture(f"noise-{number}", f"Noise by {name}", caption, noise_by_column, effect))
    return found


def _what(record: Mapping[str, Any], effect: Mapping[str, Any]) -> str:
    if "class" in effect:
        return f"The probability of “{shortened(effect['class'])}”"
    return "The probability to last longer than half of all rows" if record["task"] == "durations" else "What is predicted"


def _axis(record: Mapping[str, Any], effect: Mapping[str, Any]) -> str:
    return "probability" if "class" in effect or record["task"] == "durations" else "prediction"


def _categories(effect: Mapping[str, Any]) -> str:
    if effect["kind"] != "category":
        return ""
    listed = ", ".join(f"{i} {shortened(str(name), 24)}" for i, name in enumerate(effect["at"], start=1))
    return f" Categories: {listed}."
