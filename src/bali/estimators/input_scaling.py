"""Columns brought to unit scale; those with heavy tails are bent towards a normal distribution first.

A few very large values leave all the others crowded together, and pull the fit. Yeo and Johnson's power transformation
(Biometrika 2000) is the identity at power 1 and bends more the further its power is from 1.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize_scalar
from scipy.stats import yeojohnson

from bali.estimators.defaults import MANY_COLUMNS
from bali.inference.health import HealthWarning

Array = NDArray[Any]

#: Excess kurtosis from which a column has heavy tails; a Laplace distribution has 3.
HEAVY_TAILS = 10.0
_POWERS = (-2.0, 4.0)
#: A value is more likely a mistake than a tail if it is so many times as far out as 99 of 100 values of its column, and so
#: many times as far as these spread even when the column is bent: a bend brings the end of a tail near, and no lone value.
GAP, LONE = 100.0, 30.0
#: Inputs this far from the training rows, in standard deviations, leave the range of the arithmetic within a few layers.
FARTHEST = 1e12


class OutOfReachError(ValueError):
    """A value that nothing can be computed for; `row` and `column` are its place."""

    def __init__(self, value: float, row: int, column: int, name: str = "") -> None:
        self.value, self.row, self.column, self.name = value, row, column, name
        place = f"column {name!r} in row {row}" if name and name != f"x{column}" else f"X[{row}, {column}]"
        super().__init__(
            f"{place} is {value:.3g}, more than {FARTHEST:.0e} standard deviations away from the training rows; "
            "correct it, or leave that row out"
        )

    def named(self, name: str) -> OutOfReachError:
        return OutOfReachError(self.value, self.row, self.column, name)

    def below(self, start: int) -> OutOfReachError:
        """The same in rows of which those that were looked at begin at `start`."""
        return OutOfReachError(self.value, self.row + start, self.column, self.name)


class InputScaling(NamedTuple):
    """x → (bend((x − mean)/scale, power) − bent_mean)/bent_scale, column by column."""

    mean: Array
    scale: Array
    power: Array  # 1: not bent
    bent_mean: Array
    bent_scale: Array

    @classmethod
    def learn(
        cls, X: Array, weight: Array | None = None, *, bends: bool = True, names: Sequence[object] | None = None
    ) -> InputScaling:
        """`names` are those of the columns, for warnings."""
        weight = np.ones(len(X)) if weight is None else weight
        mean, scale = _moments(X, weight)
        if _are_pixels(X):
            common = np.full_like(scale, np.sqrt(weight @ ((X - mean) ** 2).mean(1) / weight.sum()))
            same = np.zeros_like(scale)
            return cls(mean, common, same + 1.0, same, same + 1.0)
        Z = (X - mean) / scale
        kurtosis = weight @ Z**4 / weight.sum() - 3.0
        power = np.ones(X.shape[1])
        for column in np.flatnonzero(kurtosis > HEAVY_TAILS):
            bend = _fitted_power(Z[:, column], weight)
            name = repr(str(names[int(column)])) if names is not None else str(column)
            _warn_of_a_lone_value(X[:, column], yeojohnson(Z[:, column], bend), name)
            if bends:
                power[column] = bend
        bent_mean, bent_scale = _moments(_bent(Z, power), weight)
        untouched = power == 1.0
        bent_mean[untouched], bent_scale[untouched] = 0.0, 1.0
        return cls(mean, scale, power, bent_mean, bent_scale)

    def __call__(self, X: Array) -> Array:
        with np.errstate(over="ignore", invalid="ignore"):
            found: Array = (_bent((X - self.mean) / self.scale, self.power) - self.bent_mean) / self.bent_scale
        near = np.abs(found) <= FARTHEST
        if not near.all():
            row, column = (int(i) for i in np.argwhere(~near)[0])
            raise OutOfReachError(float(X[row, column]), row, column)
        return found


def _moments(X: Array, weight: Array) -> tuple[Array, Array]:
    """Mean and standard deviation; 1, or more than rounding, for the latter where a column is constant up to rounding."""
    # In units of a power of two, which changes no digit: squares of very large or small numbers would not be numbers.
    largest = np.abs(X).max(0)
    unit = np.ldexp(1.0, np.clip(np.frexp(largest)[1], -1000, 1000))
    X = X / unit
    mean = weight @ X / weight.sum()
    scale = np.sqrt(weight @ (X - mean) ** 2 / weight.sum())
    rounding = 10 * np.finfo(np.float64).eps * largest
    return mean * unit, np.where(scale * unit <= rounding, np.maximum(rounding, 1.0), scale * unit)


def _warn_of_a_lone_value(column: Array, bent: Array, name: str) -> None:
    """A cell that crowds all others together, such as a slip of the keyboard, hides what the column tells."""
    low, middle, high = np.quantile(column, (0.25, 0.5, 0.75))
    hundredth = -(-len(column) // 100)
    distance = np.abs(column - middle)
    order = distance.argsort()
    others, farthest = order[:-hundredth], order[-1]
    reach = distance[others].max(initial=0.0)
    if low == high or reach == 0.0:  # of a column that is mostly one value, the others are what it tells
        return
    gap = distance[farthest] / reach
    beyond = abs(bent[farthest] - bent[others].mean())
    if gap > GAP and beyond > LONE * bent[others].std():
        warnings.warn(
            f"column {name} has a value of {column[farthest]:.3g}, {gap:.1g} times as far out as 99 of 100 of its values; "
            "if it is a mistake, correct it or leave the row out: it hides what the column tells",
            HealthWarning,
            stacklevel=2,
        )


def _are_pixels(X: Array) -> bool:
    """Many columns on one scale, told by their common range: one that hardly varies is then no news, and not blown up."""
    if X.shape[1] < MANY_COLUMNS:
        return False
    ranges, counts = np.unique(np.stack([X.min(0), X.max(0)]), axis=1, return_counts=True)
    return bool(counts.max() >= X.shape[1] / 2 and np.ptp(ranges[:, counts.argmax()]) > 0)


def _bent(Z: Array, power: Array) -> Array:
    bent = Z.copy()
    for column in np.flatnonzero(power != 1.0):
        bent[:, column] = yeojohnson(Z[:, column], power[column])
    return bent


def _fitted_power(z: Array, weight: Array) -> float:
    """The power after which a normal distribution makes the values most likely."""
    log_slope = float(weight @ (np.sign(z) * np.log1p(np.abs(z)))) / weight.sum()

    def loss(power: float) -> float:
        bent = yeojohnson(z, power)
        variance = weight @ (bent - weight @ bent / weight.sum()) ** 2 / weight.sum()
        return float(0.5 * np.log(variance) - (power - 1.0) * log_slope)

    return float(minimize_scalar(loss, bounds=_POWERS, method="bounded").x)
