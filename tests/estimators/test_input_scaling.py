"""Columns at unit scale, and bent where their tails are heavy."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.stats import kurtosis, yeojohnson_normmax
from sklearn.preprocessing import StandardScaler

from bali.estimators.input_scaling import HEAVY_TAILS, InputScaling
from bali.inference.health import HealthWarning

RNG = np.random.default_rng(0)


def test_ordinary_columns_are_only_standardised() -> None:
    X = RNG.normal(size=(500, 3)) * [1.0, 1e-6, 1e6] + [0.0, 5.0, -1e7]
    np.testing.assert_allclose(InputScaling.learn(X)(X), StandardScaler().fit_transform(X), atol=1e-8)


def test_heavy_tails_are_bent_by_the_power_of_most_likelihood() -> None:
    X = np.exp(RNG.normal(size=(2000, 1)))
    assert kurtosis(X[:, 0]) > HEAVY_TAILS
    scaling = InputScaling.learn(X)
    z = (X[:, 0] - scaling.mean) / scaling.scale
    assert scaling.power[0] == pytest.approx(yeojohnson_normmax(z), abs=1e-3)
    bent = scaling(X)[:, 0]
    assert abs(float(kurtosis(bent))) < 2.0
    np.testing.assert_allclose([bent.mean(), bent.std()], [0.0, 1.0], atol=1e-9)
    assert (np.diff(bent[np.argsort(X[:, 0])]) >= 0).all()


def test_bending_can_be_left_out() -> None:
    X = np.exp(2.0 * RNG.normal(size=(500, 1)))
    np.testing.assert_allclose(InputScaling.learn(X, bends=False)(X), StandardScaler().fit_transform(X))


def test_constant_columns_stay_finite() -> None:
    X = np.column_stack([np.full(50, 3.0), RNG.normal(size=50)])
    assert (InputScaling.learn(X)(X)[:, 0] == 0.0).all()


def test_pixels_keep_one_scale() -> None:
    X = RNG.integers(0, 256, size=(400, 120)).astype(float)
    X[:, :10] = 0.0
    X[7, 3] = 9.0
    X[0, 10:], X[1, 10:] = 0.0, 255.0
    scaled = InputScaling.learn(X)(X)
    assert np.ptp(scaled[:, 3]) < 0.2
    assert scaled.var(0).mean() == pytest.approx(1.0)
    ordinary = X * np.arange(1, 121)  # every column has a range of its own
    np.testing.assert_allclose(InputScaling.learn(ordinary)(ordinary)[:, 20:].std(0), 1.0)


def test_weights_are_repetitions() -> None:
    X = np.exp(2.0 * RNG.normal(size=(300, 2)))
    weight = RNG.integers(0, 4, 300)
    weighted = InputScaling.learn(X[weight > 0], weight[weight > 0].astype(float))
    repeated = InputScaling.learn(np.repeat(X, weight, 0))
    np.testing.assert_allclose(weighted(X), repeated(X), atol=1e-6)


# --- a lone value -------------------------------------------------------------------------------------------------

COLUMNS: dict[str, Callable[[int], NDArray[np.float64]]] = {
    "normal": lambda n: RNG.normal(size=n),
    "uniform": lambda n: RNG.uniform(size=n),
    "counts": lambda n: RNG.integers(0, 6, n).astype(float),
    "log-normal": lambda n: np.exp(RNG.normal(size=n)),
    "Laplace": lambda n: RNG.laplace(size=n),
    "t with 3 degrees": lambda n: RNG.standard_t(3, n),
}


@pytest.mark.parametrize("bends", [True, False])
@pytest.mark.parametrize("n_rows", [20, 300, 5000])
@pytest.mark.parametrize("kind", COLUMNS)
def test_a_slip_of_the_keyboard_is_told(kind: str, n_rows: int, bends: bool) -> None:
    for value in (1e6, -1e6, 1e300):
        column = COLUMNS[kind](n_rows)
        column[n_rows // 3] = value
        with pytest.warns(HealthWarning, match="column 'b' has a value of"):
            InputScaling.learn(np.stack([RNG.normal(size=n_rows), column], 1), bends=bends, names=["a", "b"])


def test_a_few_slips_are_told_as_well() -> None:
    X = RNG.normal(size=(1000, 1))
    X[:9] *= 1e6
    with pytest.warns(HealthWarning, match="column 0 has a value of"):
        InputScaling.learn(X)


SETS = sorted(Path(os.environ["BALI_DATA"]).rglob("*.npz")) if "BALI_DATA" in os.environ else []


@pytest.mark.data
@pytest.mark.parametrize("path", SETS, ids=lambda path: path.stem)
def test_tails_of_real_columns_are_no_slips(path: Path) -> None:
    """Whole sets, and a few hundred of their rows, where a tail may have one row far out."""
    with np.load(path) as arrays:
        found = arrays["X" if "X" in arrays else "x_test"]
        X = found.reshape(len(found), -1).astype(float)
    rng = np.random.default_rng(0)
    parts = [rng.choice(len(X), min(len(X), n), replace=False) for n in rng.integers(300, 601, 10)]
    with warnings.catch_warnings():
        warnings.simplefilter("error", HealthWarning)
        for rows in [*parts, slice(None)]:
            assert np.isfinite(InputScaling.learn(X[rows]).bent_scale).all()
