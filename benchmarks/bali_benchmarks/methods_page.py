"""The page of the comparison: figures beside those of the methods' authors, and a verdict computed from both."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from bali_benchmarks.baselines.table import METHODS
from bali_benchmarks.published import MNIST_ACCURACY, MNIST_MARGIN, PUBLISHED, REASONS, SOURCES, Published

Line = dict[str, Any]

#: By metric: its name, and 1 where more is worse, −1 where less is.
METRICS = {"rmse": ("RMSE", 1.0), "log_likelihood": ("Log-likelihood", -1.0)}
#: Combined standard errors by which a figure may be worse than the published one.
ALLOWED = 2.0


class MeanScore(NamedTuple):
    """Mean and standard error over splits."""

    mean: float
    error: float


@dataclass(frozen=True)
class Comparison:
    """One of our figures beside the published one."""

    name: str
    method: str
    metric: str
    ours: MeanScore
    published: Published

    @property
    def gap(self) -> float:
        """By how many combined standard errors ours is worse."""
        sign = METRICS[self.metric][1]
        return sign * (self.ours.mean - self.published.mean) / math.hypot(self.ours.error, self.published.error)

    @property
    def falls_short(self) -> bool:
        return self.gap > ALLOWED

    @property
    def verdict(self) -> str:
        if self.falls_short:
            return f"worse by {self.gap:.1f}"
        return f"better by {-self.gap:.1f}" if self.gap < -ALLOWED else "alike"


def figure(rows: list[Line], name: str, method: str, metric: str) -> MeanScore | None:
    values = np.array([row[metric] for row in rows if row["set"] == name and row["method"] == method])
    if len(values) < 2:
        return None
    return MeanScore(float(values.mean()), float(values.std(ddof=1) / len(values) ** 0.5))


def of_splits(row: Line) -> int:
    """How many splits the set has; lines from before there could be fewer are of all."""
    return int(row["of_splits"] if "of_splits" in row else row.get("splits", 1))


def comparisons(rows: list[Line]) -> Iterator[Comparison]:
    """All figures that there are published ones for."""
    for metric, by_set in PUBLISHED.items():
        for name, by_method in by_set.items():
            for method, published in by_method.items():
                ours = figure(rows, name, method, metric)
                if ours is not None:
                    yield Comparison(name, method, metric, ours, published)


def shortfalls(rows: list[Line]) -> list[Comparison]:
    return [comparison for comparison in comparisons(rows) if comparison.falls_short]


def to_markdown(rows: list[Line]) -> str:
    """The page; it says nothing that is not in the rows or published."""
    lines = ["# The methods, beside their authors' figures", "", *_introduction(rows)]
    for metric in METRICS:
        lines += ["", f"## {METRICS[metric][0]}", "", *_published_table(rows, metric)]
        others = _others_table(rows, metric)
        lines += ["", "Methods without published figures on these splits:", "", *others] if others else []
    lines += ["", "## Where a figure falls short", "", *_shortfalls(rows)]
    lines += ["", "## MNIST", "", *_mnist(rows), "", "## Time", "", *_time(rows)]
    return "\n".join(lines) + "\n"


def _introduction(rows: list[Line]) -> list[str]:
    text = (
        "Networks with one hidden layer of 50 rectifiers, on the splits that were published with the sets. Mean ± standard "
        "error over splits, in the units of the targets. Below ours stand the published figure and the verdict: `alike` "
        f"within {ALLOWED:.0f} combined standard errors, otherwise by how many of them ours is better or worse. "
    )
    budget = next((row["budget"] for row in rows if "budget" in row), None)
    if budget is not None:
        text += (
            f"Every method had the same budget: up to {budget['steps']:,} steps of {budget['batch_size']} rows (fewer where "
            f"one step does the work of several), at most {budget['n_settings']} settings; setting, number of steps and "
            f"noise were chosen on {100 * budget['validation_fraction']:.0f} % of the training rows, and then all rows were "
            "trained on. "
        )
    fewer = sorted({(row["method"], row["splits"]) for row in rows if row.get("splits", 1) < of_splits(row)})
    if fewer:
        text += f"Of the first splits only: {', '.join(f'{_title(m)} ({n})' for m, n in fewer)}. "
    text += (
        "The figures that the authors of the global inducing points have for such sets could not be checked against their "
        "paper, and are left out. "
    ) * any(row["method"] == "global_inducing" for row in rows)
    sources = "; ".join(f"{_title(method)}: {source}" for method, source in SOURCES.items())
    return [_wrapped(text + "Written by `bali-benchmarks methods`."), "", _wrapped(f"Published figures: {sources}.")]


def _published_table(rows: list[Line], metric: str) -> list[str]:
    found = {(c.name, c.method): c for c in comparisons(rows) if c.metric == metric}
    lines = _header(list(SOURCES))
    for name, by_method in PUBLISHED[metric].items():
        cells = []
        for method, published in by_method.items():
            comparison = found.get((name, method))
            ours, verdict = ("–", "–") if comparison is None else (_cell(comparison.ours), comparison.verdict)
            cells.append(f"{ours}<br>{_cell(published)}<br>{verdict}")
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return lines


def _others_table(rows: list[Line], metric: str) -> list[str]:
    others = [m for m in METHODS if m not in SOURCES and any(row["method"] == m and metric in row for row in rows)]
    if not others:
        return []
    lines = _header(others)
    for name in PUBLISHED[metric]:
        lines.append(f"| {name} | {' | '.join(_cell(figure(rows, name, method, metric)) for method in others)} |")
    return lines


def _shortfalls(rows: list[Line]) -> list[str]:
    found = list(comparisons(rows))
    short = [c for c in found if c.falls_short]
    lines = [f"{len(found) - len(short)} of {len(found)} figures are no worse than the published ones."]
    if short:
        lines.append("")
    for c in short:
        reason = REASONS.get((c.name, c.method), "Why is not known.")
        what = f"{METRICS[c.metric][0]} {_cell(c.ours)} against {_cell(c.published)}"
        lines.append(f"- {c.name}, {_title(c.method)}: {what}, {c.gap:.1f} combined standard errors worse. {reason}")
    return lines


def _mnist(rows: list[Line]) -> list[str]:
    text = (
        "784-256-256-10 with the paper's activation and settings (batches of 2,048, Adam at 0.002, weight decay 0.0001, "
        "dropout 0.1), pixels from 0 to 1, one run each. The paper takes 30,000 steps; here the last of fewer steps have a "
        f"tenth of the learning rate. Near enough to its {MNIST_ACCURACY} is within {100 * MNIST_MARGIN:.1f} points."
    )
    lines = [_wrapped(text), "", "| method | steps | the last | accuracy | log-likelihood | ECE | near enough | seconds |"]
    lines.append("|---" * 8 + "|")
    for row in (row for row in rows if row["set"] == "mnist"):
        points = 100 * abs(row["accuracy"] - MNIST_ACCURACY)
        near = "yes" if points <= 100 * MNIST_MARGIN else f"no: {points:.2f} points away"
        scores = " | ".join(f"{row[key]:.4f}" for key in ("accuracy", "log_likelihood", "ece"))
        steps = f"{row['steps']:,} | {row['last_steps']:,}"
        lines.append(f"| {_title(row['method'])} | {steps} | {scores} | {near} | {row['seconds']:.0f} |")
    return lines


def _time(rows: list[Line]) -> list[str]:
    """A job's seconds stand on the lines of all of its splits."""
    seconds = {(row["set"], row["method"]): row["seconds"] for row in rows}
    regression = sum(value for (name, _), value in seconds.items() if name != "mnist")
    text = (
        f"All regressions together: {regression / 60:.1f} minutes of one thread each; MNIST: "
        f"{(sum(seconds.values()) - regression) / 60:.1f} minutes. Seconds for all splits of a set, predictions included:"
    )
    lines = [_wrapped(text), ""]
    methods = [m for m in METHODS if any(method == m for _, method in seconds)]
    lines += _header(methods)
    for name in PUBLISHED["rmse"]:
        cells = (f"{seconds[name, m]:.0f}" if (name, m) in seconds else "–" for m in methods)
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return lines


def _wrapped(text: str) -> str:
    return textwrap.fill(text, 120, break_on_hyphens=False)


def _header(methods: list[str]) -> list[str]:
    return [f"| set | {' | '.join(map(_title, methods))} |", "|---" * (len(methods) + 1) + "|"]


def _cell(value: MeanScore | Published | None) -> str:
    return "–" if value is None else f"{value.mean:.3f} ± {value.error:.3f}"


def _title(method: str) -> str:
    return METHODS[method].title
