"""Columns at unit scale, and bent where their tails are heavy."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import kurtosis, yeojohnson_normmax
from sklearn.preprocessing import StandardScaler

from bali.estimators.input_scaling import HEAVY_TAILS, InputScaling

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
