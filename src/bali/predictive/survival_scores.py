"""Scores of predicted durations, of which some were not over yet when they were observed (right-censored)."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from bali.predictive.durations import DurationPredictive, bounds_of
from bali.predictive.predictive_base import Predictive, UndefinedError

Array = NDArray[np.float64]
Targets = Tensor | ArrayLike
_ROWS_AT_ONCE = 1000


def concordance(predictive: Predictive, y: Targets) -> float:
    """Harrell's C: how often, of two rows, the one that lasted longer has the longer median; ties count one half.

    Pairs count where it is known which of the two lasted longer.
    """
    return concordance_of(predictive.median.double().cpu().numpy()[:, 0], y)


def concordance_of(median: Array, y: Targets) -> float:
    """The same, of medians (n,) alone."""
    time, is_over = _observed(y)
    if len(time) != len(median):
        raise ValueError(f"y has {len(time)} rows, the prediction has {len(median)}")
    right, pairs = 0.0, 0
    for start in range(0, len(time), _ROWS_AT_ONCE):
        rows = slice(start, start + _ROWS_AT_ONCE)
        # Row i ended at its time; row j went on after that time, or was not over yet when it came.
        later = (time[None] > time[rows, None]) | ((time[None] == time[rows, None]) & ~is_over[None])
        counted = later & is_over[rows, None]
        longer, same = median[None] > median[rows, None], median[None] == median[rows, None]
        right += float((longer & counted).sum() + 0.5 * (same & counted).sum())
        pairs += int(counted.sum())
    if pairs == 0:
        raise UndefinedError("there is no pair of rows of which it is known which one lasted longer")
    return right / pairs


def integrated_brier(
    predictive: Predictive, y: Targets, times: ArrayLike | None = None, censoring: Targets | None = None
) -> float:
    """Brier score of "lasts longer than t", averaged over times t; lower is better.

    Rows that were censored before t are represented by the others (inverse probability of censoring weights; Graf et al.,
    1999). `times` are by default 100 from the 5 % to the 80 % quantile of those in y; `censoring` are the rows, by default
    y, from which the distribution of the censoring is estimated.
    """
    if not isinstance(predictive, DurationPredictive):
        raise UndefinedError(f"{type(predictive).__name__} has no survival function; durations have one")
    first, last = np.quantile(_observed(y)[0], [0.05, 0.8])
    grid = np.linspace(first, last, 100) if times is None else np.asarray(times, dtype=np.float64)
    if len(grid) < 2 or not (np.diff(grid) > 0).all():
        raise ValueError("times must be at least two, and rising")
    survival = predictive.survival(torch.as_tensor(grid)).double().cpu().numpy()
    return integrated_brier_of(survival, y, grid, censoring)


def integrated_brier_of(survival: Array, y: Targets, grid: Array, censoring: Targets | None = None) -> float:
    """The same, of probabilities (n, T) of lasting longer than each of T rising times."""
    time, is_over = _observed(y)
    not_censored = KaplanMeier(*((time, ~is_over) if censoring is None else _reversed(censoring)))
    ended = is_over[:, None] & (time[:, None] <= grid)
    lasts = time[:, None] > grid
    weight_ended, weight_lasts = not_censored.before(time)[:, None], not_censored.at(grid)[None]
    if (weight_lasts == 0).any():
        raise UndefinedError("all rows are censored before the last of the times; give smaller times")
    safe = np.where(ended, weight_ended, 1.0)
    score = (ended * survival**2 / safe + lasts * (1 - survival) ** 2 / weight_lasts).mean(0)
    return float(np.trapezoid(score, grid) / (grid[-1] - grid[0]))


class KaplanMeier:
    """The share that has not ended yet, as a function of time."""

    def __init__(self, time: Array, is_over: NDArray[np.bool_]) -> None:
        self.times, position = np.unique(time, return_inverse=True)
        ends = np.bincount(position, weights=is_over, minlength=len(self.times))
        at_risk = np.bincount(position, minlength=len(self.times))[::-1].cumsum()[::-1]
        self.share = np.concatenate([[1.0], np.cumprod(1 - ends / at_risk)])

    def at(self, t: Array) -> Array:
        return self.share[np.searchsorted(self.times, t, side="right")]

    def before(self, t: Array) -> Array:
        return self.share[np.searchsorted(self.times, t, side="left")]


def _observed(y: Targets) -> tuple[Array, NDArray[np.bool_]]:
    """Times, and whether it was over then."""
    bounds = bounds_of(torch.as_tensor(y)).cpu().numpy()
    lower, upper = bounds[:, 0], bounds[:, 1]
    if not ((lower == upper) | np.isinf(upper)).all():
        raise UndefinedError("this score takes durations that are exact or right-censored, not other bounds")
    return lower, np.isfinite(upper)


def _reversed(y: Targets) -> tuple[Array, NDArray[np.bool_]]:
    time, is_over = _observed(y)
    return time, ~is_over
