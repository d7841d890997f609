"""Columns brought to unit scale; those with heavy tails are bent towards a normal distribution first.

A few very large values leave all the others crowded together, and pull the fit. Yeo and Johnson's power transformation
(Biometrika 2000) is the identity at power 1 and bends more the further its power is from 1.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize_scalar
from scipy.stats import yeojohnson

from bali.defaults import MANY_COLUMNS

Array = NDArray[Any]

#: Excess kurtosis from which a column has heavy tails; a Laplace distribution has 3.
HEAVY_TAILS = 10.0
_POWERS = (-2.0, 4.0)


class InputScaling(NamedTuple):
    """x → (bend((x − mean)/scale, power) − bent_mean)/bent_scale, column by column."""

    mean: Array
    scale: Array
    power: Array  # 1: not bent
    bent_mean: Array
    bent_scale: Array

    @classmethod
    def learn(cls, X: Array, weight: Array | None = None, *, bends: bool = True) -> InputScaling:
        weight = np.ones(len(X)) if weight is None else weight
        mean, scale = _moments(X, weight)
        if _are_pixels(X):
            common = np.full_like(scale, np.sqrt(weight @ ((X - mean) ** 2).mean(1) / weight.sum()))
            same = np.zeros_like(scale)
            return cls(mean, common, same + 1.0, same, same + 1.0)
        Z = (X - mean) / scale
        kurtosis = weight @ Z**4 / weight.sum() - 3.0
        power = np.ones(X.shape[1])
        for column in np.flatnonzero(kurtosis > HEAVY_TAILS) if bends else ():
            power[column] = _fitted_power(Z[:, column], weight)
        bent_mean, bent_scale = _moments(_bent(Z, power), weight)
        untouched = power == 1.0
        bent_mean[untouched], bent_scale[untouched] = 0.0, 1.0
        return cls(mean, scale, power, bent_mean, bent_scale)

    def __call__(self, X: Array) -> Array:
        found: Array = (_bent((X - self.mean) / self.scale, self.power) - self.bent_mean) / self.bent_scale
        return found


def _moments(X: Array, weight: Array) -> tuple[Array, Array]:
    """Mean and standard deviation; 1 for the latter where a column is constant up to rounding."""
    mean = weight @ X / weight.sum()
    scale = np.sqrt(weight @ (X - mean) ** 2 / weight.sum())
    constant = scale <= 10 * np.finfo(np.float64).eps * np.abs(X).max(0)
    return mean, np.where(constant, 1.0, scale)


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
