"""The three synthetic sets of the paper: small, seeded, and with a known truth.

| name        | task           | train | inputs                        | noise                      |
|-------------|----------------|-------|-------------------------------|----------------------------|
| sines-trend | regression     | 32    | uniform on [−1, −¼] ∪ [¼, 1]  | 0.02 on the targets        |
| sinc        | regression     | 256   | uniform on [−1, 1]            | 0.1 on the targets         |
| two-moons   | classification | 128   | two interleaved half circles  | 0.2 on the inputs          |

Sizes and constants are those of the paper's appendix. Test sets are fresh draws from the same distribution.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from sklearn.datasets import make_moons

Array = NDArray[np.float64]


@dataclass(frozen=True)
class SyntheticData:
    """Train and test rows of one data set. Inputs are (n, D); targets are (n,), classes as integers."""

    name: str
    task: Literal["regression", "classification"]
    x_train: Array
    y_train: NDArray[np.float64] | NDArray[np.int64]
    x_test: Array
    y_test: NDArray[np.float64] | NDArray[np.int64]
    truth: Callable[[Array], Array] | None = None  # the noise-free function, for regression


def sines_trend_function(x: Array) -> Array:
    """0.3 sin(2πx) + 0.3 sin(4πx) + x"""
    return 0.3 * np.sin(2 * np.pi * x) + 0.3 * np.sin(4 * np.pi * x) + x


def sinc_function(x: Array) -> Array:
    """2 sin(20x) / (20x) − 1"""
    return 2.0 * np.sinc(20.0 * x / np.pi) - 1.0  # NumPy's sinc has a π inside


def sines_trend(seed: int = 0, *, n_train: int = 32, n_test: int = 1000) -> SyntheticData:
    """Two sines and a slope, with a gap in the middle of the inputs and little noise."""

    def inputs(n: int, rng: np.random.Generator) -> Array:
        return rng.uniform(0.25, 1.0, n) * rng.choice([-1.0, 1.0], n)

    return _regression("sines-trend", sines_trend_function, inputs, 0.02, seed, n_train, n_test)


def sinc(seed: int = 0, *, n_train: int = 256, n_test: int = 1000) -> SyntheticData:
    """A sharp central peak with ripples on both sides and visible noise."""

    def inputs(n: int, rng: np.random.Generator) -> Array:
        return rng.uniform(-1.0, 1.0, n)

    return _regression("sinc", sinc_function, inputs, 0.1, seed, n_train, n_test)


def two_moons(seed: int = 0, *, n_train: int = 128, n_test: int = 1000) -> SyntheticData:
    """Two interleaved half circles in the plane, balanced, with overlapping noise."""
    # Two seeds from one, as make_moons wants numbers.
    train_seed, test_seed = (int(s) for s in np.random.SeedSequence(seed).generate_state(2))
    x_train, y_train = make_moons(n_train, noise=0.2, random_state=train_seed)
    x_test, y_test = make_moons(n_test, noise=0.2, random_state=test_seed)
    return SyntheticData("two-moons", "classification", x_train, y_train, x_test, y_test)


def _regression(
    name: str,
    truth: Callable[[Array], Array],
    inputs: Callable[[int, np.random.Generator], Array],
    noise: float,
    seed: int,
    n_train: int,
    n_test: int,
) -> SyntheticData:
    def draw(n: int, rng: np.random.Generator) -> tuple[Array, Array]:
        x = inputs(n, rng)
        return x[:, None], truth(x) + noise * rng.standard_normal(n)

    train_rng, test_rng = np.random.default_rng(seed).spawn(2)
    x_train, y_train = draw(n_train, train_rng)
    x_test, y_test = draw(n_test, test_rng)
    return SyntheticData(name, "regression", x_train, y_train, x_test, y_test, truth)
