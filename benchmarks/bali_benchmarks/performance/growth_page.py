"""What the growth measurements say: exponents, memory beside Adam's, and pictures of both."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter, LogFormatter

from bali.predictive.plots import BLUE, VERMILLION, new_figure
from bali_benchmarks.performance.growth import AXES, METHODS, N_CLASSES, jobs
from bali_benchmarks.performance.measurement import Bar, Bench, Line, median_line, paragraph, table

#: Peak memory without BALI's factors, at most so many times Adam's.
MEMORY_LIMIT = 1.5
#: The exponent of the step time in the number of data that passes as none.
CONSTANT = 0.05
LABELS = {"rows": "rows of a batch", "width": "width of the layers", "depth": "hidden layers", "data": "number of data"}
COLOURS = dict(zip(METHODS, (BLUE, VERMILLION), strict=True))


def series(lines: Sequence[Line], axis: str, method: str, key: str = "ms") -> tuple[list[int], list[float]]:
    """Values along the axis, in ascending order, and what was measured there."""
    own = sorted((line for line in lines if line["axis"] == axis and line["method"] == method), key=_value)
    return [line["value"] for line in own], [line[key] for line in own]


def exponent(values: Sequence[float], measured: Sequence[float]) -> float:
    """Slope of the straight line through the logarithms, by least squares."""
    return float(np.polyfit(np.log(values), np.log(measured), 1)[0])


def axes_in(lines: Sequence[Line]) -> list[str]:
    """Those with at least two values: others do not grow."""
    return [axis for axis in AXES if len(series(lines, axis, METHODS[0])[0]) > 1]


def memory_shares(lines: Sequence[Line]) -> list[tuple[Line, Line, float]]:
    """BALI's line, Adam's, and BALI's peak without its factors as a share of Adam's, wherever memory was measured."""
    found = []
    for own in (line for line in lines if line["method"] == "BALI" and "peak" in line):
        (adam,) = (
            line
            for line in lines
            if line["method"] == "Adam" and (line["axis"], line["value"]) == (own["axis"], own["value"])
        )
        found.append((own, adam, (own["peak"] - own["factors"]) / adam["peak"]))
    return found


def bars(lines: Sequence[Line]) -> list[Bar]:
    found = []
    shares = memory_shares(lines)
    if shares:
        own, _, share = max(shares, key=lambda entry: entry[2])
        where = f"{LABELS[own['axis']]} {own['value']:,}"
        found.append(Bar(f"peak memory without the factors, of Adam's, at worst ({where})", share, MEMORY_LIMIT))
    if "data" in axes_in(lines):
        growth = exponent(*series(lines, "data", "BALI"))
        found.append(Bar("exponent of the step time in the number of data", growth, CONSTANT))
    return found


def section(lines: Sequence[Line]) -> list[str]:
    base = lines[0]["base"]
    exponents, times = [], []
    for axis in axes_in(lines):
        values, _ = series(lines, axis, "BALI")
        slopes = [exponent(*series(lines, axis, method)) for method in METHODS]
        exponents.append((LABELS[axis], f"{values[0]:,} to {values[-1]:,}", *(f"{slope:.2f}" for slope in slopes)))
        own, adam = (series(lines, axis, method)[1] for method in METHODS)
        for value, a, b in zip(values, own, adam, strict=True):
            times.append((LABELS[axis], f"{value:,}", f"{a:.1f}", f"{b:.1f}", f"{a / b:.2f}"))
    space = [
        (
            LABELS[own["axis"]],
            f"{own['value']:,}",
            f"{own['peak'] / 1e6:.1f}",
            f"{own['factors'] / 1e6:.1f}",
            f"{adam['peak'] / 1e6:.1f}",
            f"{share:.2f}",
        )
        for own, adam, share in memory_shares(lines)
    ]
    return [
        *paragraph(
            f"A step of a network with {base['inputs']} inputs, {base['depth']} hidden layers of {base['width']} and",
            f"{N_CLASSES} classes on {base['rows']:,} random rows, one of these sizes varied at a time.",
            "Along the number of data, rows are drawn from so many in memory.",
            median_line(lines, "rounds"),
        ),
        "",
        "Time is proportional to the size to the power of:",
        "",
        *table(("size", "range", *METHODS), exponents),
        "",
        "![Step time against rows, width, depth and number of data](images/performance-growth.svg)",
        "",
        *table(("size", "value", "BALI, ms", "Adam, ms", "ratio"), times),
        "",
        *paragraph(
            "Peak memory in MB, in a process of its own for each row of the table and each method, above what the process",
            "holds with the libraries and the batch loaded. The factors are what BALI keeps between steps:",
            "averages, M, R⁻¹, U",
            "and Cholesky factors. The last column is BALI's peak without them as a share of Adam's.",
        ),
        "",
        *table(("size", "value", "BALI", "its factors", "Adam", "share"), space),
        "",
        "![Peak memory against rows, width and depth](images/performance-memory.svg)",
    ]


def draw(lines: Sequence[Line], folder: Path) -> None:
    """Both pictures."""
    names = axes_in(lines)
    _panels(names, folder / "performance-growth.svg", lambda ax, axis: _times(ax, lines, axis), "step, ms")
    names = [axis for axis in names if axis != "data"]
    _panels(names, folder / "performance-memory.svg", lambda ax, axis: _memory(ax, lines, axis), "peak memory, MB")


def _panels(names: Sequence[str], path: Path, plot: Callable[[Axes, str], None], label: str) -> None:
    if not names:
        return
    figure, panels = new_figure(1, len(names), width=3.2, height=3.0)
    for ax, axis in zip(panels, names, strict=True):
        plot(ax, axis)
        ax.set_xscale("log", base=10 if axis == "data" else 2)
        ax.set_yscale("log")
        for one in (ax.yaxis, *([] if axis == "data" else [ax.xaxis])):  # 256 and 30, where they would be 2⁸ and 3 × 10¹
            one.set_major_formatter(FuncFormatter(_plain))
        ax.yaxis.set_minor_formatter(LogFormatter(minor_thresholds=(1, 0.5)))
        ax.set_xlabel(LABELS[axis])
        ax.spines[["top", "right"]].set_visible(False)
    panels[0].set_ylabel(label)
    panels[0].legend(frameon=False, fontsize="small")
    figure.savefig(path, metadata={"Date": None})


def _times(ax: Axes, lines: Sequence[Line], axis: str) -> None:
    for method in METHODS:
        ax.plot(*series(lines, axis, method), "o-", color=COLOURS[method], label=method, markersize=4)
    powers = ", ".join(f"{method} {exponent(*series(lines, axis, method)):.2f}" for method in METHODS)
    ax.set_title(f"power: {powers}", fontsize="small")


def _memory(ax: Axes, lines: Sequence[Line], axis: str) -> None:
    for method in METHODS:
        values, peak = series(lines, axis, method, "peak")
        ax.plot(values, np.divide(peak, 1e6), "o-", color=COLOURS[method], label=method, markersize=4)
    values, factors = series(lines, axis, "BALI", "factors")
    ax.plot(values, np.divide(factors, 1e6), "--", color=COLOURS["BALI"], label="its factors")


def _plain(value: float, _position: int | None) -> str:
    return f"{value:g}"


def _value(line: Line) -> int:
    return int(line["value"])


BENCH = Bench("growth", "Growth", jobs, section, bars)
