"""The held-out rows of a record, and whether what a model says about its own uncertainty holds there."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import special, stats

Array = NDArray[np.float64]


@dataclass(frozen=True)
class RegressionHoldout:
    row: list[Any]  # what the table calls its rows
    y: Array
    mean: Array
    std: Array
    low: Array  # ends of the 90 % intervals
    high: Array
    epistemic: Array  # variances, whose sum is std²
    aleatoric: Array
    pit: Array | None = None  # share of the predicted distribution below the true value

    @cached_property
    def transforms(self) -> Array:
        """The shares that were recorded, or those of normal distributions."""
        found: Array = special.ndtr(self.residual / self.std) if self.pit is None else self.pit
        return found

    @cached_property
    def residual(self) -> Array:
        return self.y - self.mean

    @cached_property
    def inside(self) -> NDArray[np.bool_]:
        """Which rows lie in their 90 % interval."""
        return (self.low <= self.y) & (self.y <= self.high)

    @property
    def uncertainty(self) -> Array:
        return self.std


@dataclass(frozen=True)
class ClassHoldout:
    row: list[Any]
    y: NDArray[np.int64]  # positions in `classes`
    probabilities: Array  # (n, C)
    classes: list[str]
    entropy: Array
    mutual_information: Array

    @cached_property
    def predicted(self) -> NDArray[np.int64]:
        found: NDArray[np.int64] = self.probabilities.argmax(1)
        return found

    @cached_property
    def correct(self) -> NDArray[np.bool_]:
        found: NDArray[np.bool_] = self.predicted == self.y
        return found

    @cached_property
    def confidence(self) -> Array:
        """The probability of the predicted class."""
        highest: Array = self.probabilities.max(1)
        return highest

    @property
    def uncertainty(self) -> Array:
        return self.entropy


@dataclass(frozen=True)
class DurationHoldout:
    row: list[Any]
    y: Array  # how long it lasted, or had lasted when it was last seen
    event: Array  # 1: over then
    median: Array
    low: Array
    high: Array
    pit: Array

    @property
    def transforms(self) -> Array:
        return self.pit

    @property
    def uncertainty(self) -> Array:
        """How many times longer than its lower end the interval goes."""
        return self.high / np.maximum(self.low, 1e-300)


Holdout = RegressionHoldout | ClassHoldout | DurationHoldout


def read_holdout(record: Mapping[str, Any]) -> Holdout | None:
    """The rows that a record holds, or None where it holds none."""
    held = record.get("holdout") or {}
    if not held.get("row"):
        return None

    def column(name: str) -> Array:
        values = np.asarray(held[name], dtype=np.float64)
        if len(values) != len(held["row"]):
            raise ValueError(f"the record has {len(held['row'])} held-out rows and {len(values)} values of {name!r}")
        return values

    if record["task"] == "durations":
        of_durations = ("y", "event", "median", "low", "high", "pit")
        return DurationHoldout(list(held["row"]), **{name: column(name) for name in of_durations})
    if record["task"] in ("regression", "counts"):
        names = ("y", "mean", "std", "low", "high", "epistemic", "aleatoric", *(["pit"] if "pit" in held else []))
        return RegressionHoldout(list(held["row"]), **{name: column(name) for name in names})
    classes = [str(name) for name in held["classes"]]
    return ClassHoldout(
        row=list(held["row"]),
        y=_positions(held["y"], classes),
        probabilities=column("probabilities"),
        classes=classes,
        entropy=column("entropy"),
        mutual_information=column("mutual_information"),
    )


def _positions(y: Sequence[Any], classes: list[str]) -> NDArray[np.int64]:
    """Whole numbers are positions in `classes` already; text is looked up there."""
    found = [classes.index(value) if isinstance(value, str) else int(value) for value in y]
    return np.asarray(found, dtype=np.int64)


# --- the numbers behind sentences and figures about uncertainty -------------------------------------------------------


#: How often chance alone should stay inside the ranges that are called "by chance".
CHANCE = 0.95


def chance_range(n: int, probability: float | Array) -> tuple[Array, Array]:
    """Between which fractions an event of that probability happens in n rows, by chance alone."""
    tail = (1.0 - CHANCE) / 2
    low, high = stats.binom.ppf(tail, n, probability), stats.binom.ppf(1 - tail, n, probability)
    return np.asarray(low) / n, np.asarray(high) / n


# --- regression -------------------------------------------------------------------------------------------------


class CoverageCurve(NamedTuple):
    nominal: Array  # probability of the central interval
    observed: Array  # fraction of rows inside
    low: Array  # what chance alone allows
    high: Array


def coverage_curve(held: RegressionHoldout | DurationHoldout) -> CoverageCurve:
    """For central intervals of 5 % to 95 %."""
    nominal = np.arange(0.05, 0.951, 0.05)
    from_middle = 2 * np.abs(held.transforms - 0.5)
    observed = (from_middle[:, None] <= nominal).mean(0)
    return CoverageCurve(nominal, observed, *chance_range(len(from_middle), nominal))


# --- classification ---------------------------------------------------------------------------------------------


class Bin(NamedTuple):
    n_rows: int
    stated: float  # mean of the probabilities
    observed: float  # fraction of the rows where it came true
    low: float  # 95 % interval of that fraction
    high: float


def stated_probabilities(held: ClassHoldout) -> tuple[Array, NDArray[np.bool_]]:
    """Probabilities and whether they came true: of the second of two classes, or of the predicted one of several."""
    if len(held.classes) == 2:
        return held.probabilities[:, 1], held.y == 1
    return held.confidence, held.correct


#: Of stated probabilities, and the fewest rows of one.
_BINS, _LEAST_ROWS = 10, 10


def reliability(stated: Array, true: NDArray[np.bool_]) -> list[Bin]:
    """Rows by stated probability, in bins of equal width; one with too few rows is joined to the next."""
    which = np.clip((stated * _BINS).astype(int), 0, _BINS - 1)
    groups: list[NDArray[np.bool_]] = []
    for index in np.unique(which):
        chosen = which == index
        if groups and groups[-1].sum() < _LEAST_ROWS:
            groups[-1] = groups[-1] | chosen
        else:
            groups.append(chosen)
    if len(groups) > 1 and groups[-1].sum() < _LEAST_ROWS:
        groups[-2:] = [groups[-2] | groups[-1]]
    return [_bin(stated[chosen], true[chosen]) for chosen in groups]


def _bin(stated: Array, true: NDArray[np.bool_]) -> Bin:
    count, hits = len(true), int(true.sum())
    interval = stats.binomtest(hits, count).proportion_ci(CHANCE, method="wilson")
    return Bin(count, float(stated.mean()), hits / count, float(interval.low), float(interval.high))


# --- both -------------------------------------------------------------------------------------------------------


def uncertainty_groups(uncertainty: Array) -> list[NDArray[np.intp]]:
    """Row positions in up to eight groups of equal size, from the most certain to the least; at least eight rows in each."""
    n_groups = max(1, min(8, len(uncertainty) // 8))
    return list(np.array_split(np.argsort(uncertainty, kind="stable"), n_groups))
