"""The synthetic sets have the sizes, ranges, functions and noise that the paper gives."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest

from bali_benchmarks.datasets import SyntheticData, sinc, sines_trend, two_moons

GENERATORS = [sines_trend, sinc, two_moons]
SIZES = {"sines-trend": 32, "sinc": 256, "two-moons": 128}


@pytest.mark.parametrize("generator", GENERATORS)
def test_sizes_and_types(generator: Callable[[int], SyntheticData]) -> None:
    data = generator(0)
    n = SIZES[data.name]
    n_inputs = 2 if data.task == "classification" else 1
    assert data.x_train.shape == (n, n_inputs)
    assert data.y_train.shape == (n,)
    assert data.x_test.shape == (1000, n_inputs)
    assert data.y_test.shape == (1000,)
    assert (data.truth is None) == (data.task == "classification")
    assert np.issubdtype(data.y_train.dtype, np.integer) == (data.task == "classification")


@pytest.mark.parametrize("generator", GENERATORS)
def test_seeds_decide_everything(generator: Callable[[int], SyntheticData]) -> None:
    first, again, other = generator(7), generator(7), generator(8)
    np.testing.assert_array_equal(first.x_train, again.x_train)
    np.testing.assert_array_equal(first.y_test, again.y_test)
    assert not np.allclose(first.x_train, other.x_train)
    assert not np.isin(first.x_train, first.x_test).any()


@pytest.mark.parametrize(("generator", "noise"), [(sines_trend, 0.02), (sinc, 0.1)])
def test_noise_around_the_truth(generator: Callable[..., SyntheticData], noise: float) -> None:
    data = generator(1, n_test=20_000)
    assert data.truth is not None
    residual = data.y_test - data.truth(data.x_test[:, 0])
    assert residual.std() == pytest.approx(noise, rel=0.03)
    assert abs(residual.mean()) < 5 * noise / math.sqrt(20_000)


def test_sines_trend_leaves_a_gap() -> None:
    x = sines_trend(0, n_test=20_000).x_test[:, 0]
    assert np.abs(x).min() >= 0.25
    assert np.abs(x).max() <= 1.0
    assert (x < 0).mean() == pytest.approx(0.5, abs=0.02)
    assert np.abs(x).mean() == pytest.approx(0.625, abs=0.01)


def test_sinc_fills_its_range() -> None:
    x = sinc(0, n_test=20_000).x_test[:, 0]
    assert x.min() == pytest.approx(-1.0, abs=0.01)
    assert x.max() == pytest.approx(1.0, abs=0.01)
    assert x.std() == pytest.approx(1 / math.sqrt(3), rel=0.02)


@pytest.mark.parametrize("x", [-1.0, -0.3, 0.1, 0.25, 1.7])
def test_functions_are_the_papers(x: float) -> None:
    sines, peak = sines_trend(0).truth, sinc(0).truth
    assert sines is not None
    assert peak is not None
    expected = 0.3 * math.sin(2 * math.pi * x) + 0.3 * math.sin(4 * math.pi * x) + 1.0 * x
    assert sines(np.array([x]))[0] == pytest.approx(expected)
    assert peak(np.array([x]))[0] == pytest.approx(2 * math.sin(20 * x) / (20 * x) - 1)


def test_sinc_is_defined_at_zero() -> None:
    peak = sinc(0).truth
    assert peak is not None
    assert peak(np.zeros(1))[0] == 1.0


def test_two_moons_are_balanced_half_circles() -> None:
    data = two_moons(0, n_test=20_000)
    assert data.y_train.mean() == data.y_test.mean() == 0.5
    upper = data.x_test[data.y_test == 0]
    radius = np.hypot(upper[:, 0], upper[:, 1])
    # Radius 1 plus noise of 0.2 in both directions; the tangential part lengthens it by about 0.2²/2.
    assert radius.mean() == pytest.approx(1.02, abs=0.01)
    assert radius.std() == pytest.approx(0.2, abs=0.01)
