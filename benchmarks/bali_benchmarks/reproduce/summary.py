"""Means over splits, paired differences, and the verdict beside a published figure."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from bali_benchmarks.published import Published
from bali_benchmarks.reproduce.job import Line

#: By metric: its name, and 1 where more is worse, −1 where less is.
METRICS = {
    "rmse": ("RMSE", 1.0),
    "log_likelihood": ("Log-likelihood", -1.0),
    "accuracy": ("Accuracy", -1.0),
    "ece": ("Expected calibration error", 1.0),
    "auc": ("Area under the ROC curve", -1.0),
}
#: Combined standard errors by which figures may differ and still be called alike.
ALLOWED = 2.0
#: Fewer splits or seeds than this say nothing about their own spread.
LEAST_SPLITS = 3
#: Published figures have three decimals: half a unit of the last one is added to their errors.
ROUNDING = 5e-4


class Figure(NamedTuple):
    mean: float
    error: float | None  # None for a single split
    n: int

    def __str__(self) -> str:
        return f"{self.mean:.3f}" if self.error is None else f"{self.mean:.3f} ± {self.error:.3f}"


def figure(values: Sequence[float]) -> Figure | None:
    """Mean and its standard error."""
    if not values:
        return None
    n = len(values)
    return Figure(float(np.mean(values)), float(np.std(values, ddof=1) / n**0.5) if n > 1 else None, n)


def longest(rows: Sequence[Line]) -> list[Line]:
    """Of runs with several shares of the paper's steps, those with most."""
    most: dict[tuple[str, str], float] = {}
    for row in rows:
        most[row["set"], row["method"]] = max(row["share"], most.get((row["set"], row["method"]), 0.0))
    return [row for row in rows if row["share"] == most[row["set"], row["method"]]]


def of_one_length(rows: Sequence[Line], name: str, methods: Sequence[str]) -> list[Line]:
    """What there is of these methods on a set, with the largest share of the steps that all of them have."""
    own = [row for row in rows if row["set"] == name and row["method"] in methods]
    shares = [{row["share"] for row in own if row["method"] == method} for method in methods]
    common = set.intersection(*(found for found in shares if found)) if own else set()
    return [row for row in own if row["share"] == max(common, default=None)]


def length(rows: Sequence[Line]) -> str:
    """The share of the paper's steps that these runs have, the least of them."""
    return f"{100 * min(row['share'] for row in rows):.3g} %"


def by_split(rows: Sequence[Line], name: str, method: str, metric: str) -> dict[int, float]:
    return {row["split"]: row[metric] for row in rows if row["set"] == name and row["method"] == method and metric in row}


def figure_of(rows: Sequence[Line], name: str, method: str, metric: str) -> Figure | None:
    return figure(list(by_split(rows, name, method, metric).values()))


def unfinished(rows: Sequence[Line], planned: Mapping[str, int], methods: Sequence[str]) -> str:
    """What has fewer splits than planned, or fewer steps than the paper, as a sentence; empty where nothing has."""
    found: dict[str, list[str]] = {}
    for name, n_splits in planned.items():
        for method in methods:
            own = [row for row in rows if row["set"] == name and row["method"] == method]
            if own and len(own) < n_splits:
                found.setdefault(f"{name} {len(own)} of {n_splits} splits", []).append(f"`{method}`")
            if own and own[0]["share"] < 1.0:
                found.setdefault(f"{name} {length(own)} of the steps", []).append(f"`{method}`")
    parts = [f"{what} ({', '.join(which)})" for what, which in found.items()]
    return f"Not in full: {'; '.join(parts)}." if parts else ""


def paired_difference(rows: Sequence[Line], name: str, metric: str, method: str, other: str) -> Figure | None:
    """Of two methods, over the splits that both have: most of what splits do to both is gone from it."""
    one, two = by_split(rows, name, method, metric), by_split(rows, name, other, metric)
    return figure([one[k] - two[k] for k in sorted(one.keys() & two.keys())])


def gap(ours: Figure, published: Published, metric: str) -> float:
    """By how many combined standard errors ours is worse."""
    error = math.hypot(ours.error or 0.0, published.error, ROUNDING)
    return METRICS[metric][1] * (ours.mean - published.mean) / error


def verdict(ours: Figure, published: Published, metric: str) -> str:
    if ours.n < LEAST_SPLITS:
        return "too few"
    worse_by = gap(ours, published, metric)
    if abs(worse_by) <= ALLOWED:
        return "alike"
    return f"worse by {worse_by:.1f}" if worse_by > 0 else f"better by {-worse_by:.1f}"
