"""Durations, of which some are only known to lie between bounds, and scores of their predictions.

y has two columns, a lower and an upper bound:

    known exactly      t, t        over after t
    right-censored     t, inf      not over yet at t
    left-censored      0, t        over at some time before t
    interval           s, t        over at some time between s and t

A single column holds durations that are all known exactly. `durations` makes the two columns of times and events.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from bali.predictive import bounded_families
from bali.predictive.bounded_families import log_1m_exp
from bali.predictive.family_predictive import FamilyPredictive
from bali.predictive.likelihood import LARGEST_LOG_SHAPE, FamilyLikelihood, exp
from bali.predictive.predictive_base import Predictive, UndefinedError
from bali.predictive.target_checks import columns_for, refuse

DurationFamily = bounded_families.LogNormal | bounded_families.Weibull


def durations(time: Tensor | ArrayLike, event: Tensor | ArrayLike | None = None) -> Tensor:
    """Bounds (n, 2) from times and events: 1 where it was over at that time, 0 where it was not over yet (right-censored).

    `time` may be scikit-survival's structured array of both.
    """
    values = _array(time)
    if values.dtype.names is not None:
        if event is not None or len(values.dtype.names) != 2:
            raise ValueError("a structured array of durations has two fields, event and time, and needs no other argument")
        event_name, time_name = sorted(values.dtype.names, key=lambda name: values[name].dtype != bool)
        values, event = values[time_name], values[event_name]
    ends = np.ones(values.shape) if event is None else _array(event)
    t, over = (torch.tensor(column.astype(np.float64)) for column in (values, ends))
    if t.dim() != 1 or t.shape != over.shape:
        raise ValueError(f"time and event must be a number for each row each, got {tuple(t.shape)} and {tuple(over.shape)}")
    refuse(~((t > 0) & t.isfinite())[:, None], t[:, None], "durations must be positive")
    refuse(((over != 0) & (over != 1))[:, None], over[:, None], "events must be 0 or 1")
    return torch.stack([t, torch.where(over == 1, t, torch.inf)], -1)


def given_bounds(y: ArrayLike) -> Tensor:
    """Bounds (n, 2) from one array: times and events, lower and upper bounds, or scikit-survival's structured array."""
    given = np.asarray(y)
    if given.dtype.names is not None:
        return durations(given)
    if given.ndim != 2 or given.shape[1] != 2:
        raise ValueError(
            "durations are an array of two columns, time and event or a lower and an upper bound, or scikit-survival's "
            "structured array"
        )
    first, second = given.T.astype(np.float64)
    if np.isin(second, (0, 1)).all() or not (first <= second).all():
        return durations(first, second)
    return bounds_of(torch.tensor(given.astype(np.float64)))


def _array(values: Tensor | ArrayLike) -> NDArray[Any]:
    return values.detach().cpu().numpy() if isinstance(values, Tensor) else np.asarray(values)


def bounds_of(y: Tensor) -> Tensor:
    """(..., n, 2) in float64; a single column holds exact durations."""
    y = y.double()
    if y.shape[-1] != 2 or y.dim() == 1:
        y = y if y.dim() > 1 and y.shape[-1] == 1 else y.unsqueeze(-1)
        y = torch.cat([y, y], -1)
    check_bounds(y)
    return y


def check_bounds(y: Tensor) -> None:
    lower, upper = y[..., :1], y[..., 1:]
    refuse(~(upper > 0), y, "durations must be positive")
    refuse(~((lower >= 0) & (lower <= upper)), y, "bounds of durations must be 0 ≤ lower ≤ upper")
    refuse(lower.isinf() | ((lower == 0) & upper.isinf()), y, "durations between 0 and infinity say nothing")


def censored_log_prob(family: DurationFamily, bounds: Tensor) -> Tensor:
    """log density of exact durations, log probability of the others, (..., n)."""
    lower, upper = bounds[..., :1], bounds[..., 1:]
    exact, right, left = lower == upper, upper.isinf(), lower == 0
    between = ~(exact | right | left)
    # Functions are evaluated at 1 where their result is not taken, so that no gradient is infinite there.
    density = family.log_prob(torch.where(exact, lower, 1.0))
    survival = family.log_survival(torch.where(right | between, lower, 1.0))
    before = family.log_cdf(torch.where(left | between, upper, 1.0))
    # P(s < y < t) = S(s) − S(t) = F(t) − F(s): by the smaller two, which keep their digits.
    start, end = torch.where(between, lower, 1.0), torch.where(between, upper, 2.0)
    by_survival = survival + log_1m_exp(family.log_survival(start) - family.log_survival(end))
    by_cdf = before + log_1m_exp(family.log_cdf(end) - family.log_cdf(start))
    inside = torch.where(survival < before, by_survival, by_cdf)
    found = torch.where(exact, density, torch.where(right, survival, torch.where(left, before, inside)))
    return found.sum(-1)


@dataclass(frozen=True)
class DurationPredictive(FamilyPredictive):
    """Predictions of durations; observed ones may be bounds, as described in this file."""

    def component_log_prob(self, y: Tensor) -> Tensor:
        bounds = bounds_of(y)

        def of_part(family: Any, rows: slice) -> Tensor:
            return censored_log_prob(family, bounds[rows]).mT

        return self._by_rows(of_part).mT

    def cdf_bounds(self, y: Tensor) -> tuple[Tensor, Tensor]:
        bounds = bounds_of(y)
        upper = bounds[:, 1:]
        at_end = self.cdf(torch.where(upper.isinf(), 1.0, upper))
        return self.cdf(bounds[:, :1]), torch.where(upper.isinf(), 1.0, at_end)

    def survival(self, times: Tensor) -> Tensor:
        """Probability of lasting longer than each of these times, (n, T)."""
        t = times.double().reshape(-1)

        def of_part(family: Any, rows: slice) -> Tensor:
            return torch.cat([1 - family.cdf(time).mean(0) for time in t], -1)

        return self._by_rows(of_part)


class _Duration(FamilyLikelihood):
    n_parameters: ClassVar[int] = 2

    @abstractmethod
    def family(self, z: Tensor) -> DurationFamily: ...

    def n_outputs(self, y: Tensor) -> int:
        return self.n_parameters

    def n_targets(self, n_outputs: int) -> int:
        if n_outputs != self.n_parameters:
            raise ValueError(f"{type(self).__name__} needs a network with {self.n_parameters} outputs, not {n_outputs}")
        return 1

    def targets(self, y: Tensor, z: Tensor) -> Tensor:
        self.n_targets(z.shape[-1])
        has_bounds = y.dim() > 1 and y.shape[-1] == 2
        return bounds_of(columns_for(y, z, 2 if has_bounds else 1))

    def log_prob(self, z: Tensor, y: Tensor) -> Tensor:
        return censored_log_prob(self.family(z), y)

    def predictive(
        self, z: Tensor, noise: Tensor | None = None, inflation: Tensor | None = None, dof: float | None = None
    ) -> Predictive:
        return DurationPredictive(self.family(z))


class Weibull(_Duration):
    """P(y > t) = exp(−(t/scale)^shape). Outputs: logarithm of the scale, logarithm of the shape."""

    def family(self, z: Tensor) -> DurationFamily:
        log_scale, log_shape = self.parts(z)
        return bounded_families.Weibull(exp(log_scale), exp(log_shape, LARGEST_LOG_SHAPE))


class LogNormalDuration(_Duration):
    """exp of a Gaussian. Outputs: mean of the logarithm, logarithm of its standard deviation."""

    def family(self, z: Tensor) -> DurationFamily:
        loc, log_scale = self.parts(z)
        return bounded_families.LogNormal(loc, exp(log_scale))


# --- scores, where some were not over yet when they were observed (right-censored) ------------------------------------


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
        from scipy import stats  # here, as a network needs no SciPy

        self._share = stats.ecdf(stats.CensoredData.right_censored(time, ~is_over)).sf

    def at(self, t: Array) -> Array:
        return np.asarray(self._share.evaluate(t))

    def before(self, t: Array) -> Array:
        return self.at(np.nextafter(t, -np.inf))


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
