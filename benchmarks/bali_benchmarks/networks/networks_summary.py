"""Figures over seeds, and differences between methods on the same seeds."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from bali_benchmarks.performance.measurement import Line


@dataclass(frozen=True)
class Average:
    """A mean over seeds; one seed has no standard error."""

    mean: float
    error: float | None
    n: int

    def text(self, digits: int = 4, *, signed: bool = False) -> str:
        sign = "+" if signed else ""
        mean = f"{self.mean:{sign}.{digits}f}"
        return mean if self.error is None else f"{mean} ± {self.error:.{digits}f}"


def average(values: Sequence[float]) -> Average | None:
    if not values:
        return None
    error = statistics.stdev(values) / math.sqrt(len(values)) if len(values) > 1 else None
    return Average(statistics.fmean(values), error, len(values))


def of(lines: Sequence[Line], task: str, method: str, key: str) -> Average | None:
    """A score of a method on a task; None where it was not measured."""
    return average(list(_by_seed(lines, task, method, key).values()))


def difference(
    lines: Sequence[Line], task: str, method: str, other: str, key: str, other_key: str | None = None
) -> Average | None:
    """Of the method's score to the other's, on the seeds that both have."""
    own, theirs = _by_seed(lines, task, method, key), _by_seed(lines, task, other, other_key or key)
    return average([own[seed] - theirs[seed] for seed in sorted(own.keys() & theirs.keys())])


def _by_seed(lines: Sequence[Line], task: str, method: str, key: str) -> dict[int, float]:
    own = [line for line in lines if line["task"] == task and line["method"] == method and key in line]
    return {line["seed"]: line[key] for line in own}
