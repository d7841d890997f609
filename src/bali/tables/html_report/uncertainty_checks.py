"""Does what a model says about its own uncertainty hold? The numbers behind sentences and figures."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from bali.tables.html_report.holdout import Array, ClassHoldout, DurationHoldout, RegressionHoldout

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


def probability_integral_transform(held: RegressionHoldout | DurationHoldout) -> Array:
    """The share of the predicted distribution that lies below the true value."""
    return held.transforms


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


def reliability(stated: Array, true: NDArray[np.bool_], n_bins: int = 10, least: int = 10) -> list[Bin]:
    """Rows by stated probability, in bins of equal width; one with fewer than `least` rows is joined to the next."""
    which = np.clip((stated * n_bins).astype(int), 0, n_bins - 1)
    groups: list[NDArray[np.bool_]] = []
    for index in np.unique(which):
        chosen = which == index
        if groups and groups[-1].sum() < least:
            groups[-1] = groups[-1] | chosen
        else:
            groups.append(chosen)
    if len(groups) > 1 and groups[-1].sum() < least:
        last = groups.pop()
        groups[-1] = groups[-1] | last
    return [_bin(stated[chosen], true[chosen]) for chosen in groups]


def _bin(stated: Array, true: NDArray[np.bool_]) -> Bin:
    count, hits = len(true), int(true.sum())
    interval = stats.binomtest(hits, count).proportion_ci(CHANCE, method="wilson")
    return Bin(count, float(stated.mean()), hits / count, float(interval.low), float(interval.high))


# --- both -------------------------------------------------------------------------------------------------------


def uncertainty_groups(uncertainty: Array, n_groups: int = 8, least: int = 8) -> list[NDArray[np.intp]]:
    """Row positions in groups of equal size, from the most certain to the least; at least `least` rows in each."""
    n_groups = max(1, min(n_groups, len(uncertainty) // least))
    return list(np.array_split(np.argsort(uncertainty, kind="stable"), n_groups))
