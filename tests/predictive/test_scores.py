"""Scores of distributions against their definitions, written out by hand, and against simulation."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from scipy import stats

from bali.predictive import likelihoods, metrics
from bali.predictive.likelihoods import durations
from bali.predictive.mixtures import RegressionPredictive
from bali.predictive.predictive_base import Predictive, UndefinedError

rng = np.random.default_rng(0)


def standard(n: int = 1, scale: float = 1.0) -> RegressionPredictive:
    return RegressionPredictive(torch.zeros(1, n, 1).double(), torch.full((1, 1, 1), scale**2).double())


def counts(n: int, rate: float) -> Predictive:
    return likelihoods.Poisson().predictive(torch.full((2, n, 1), math.log(rate), dtype=torch.float64))


def exponential(scales: list[float]) -> Predictive:
    z = torch.stack([torch.tensor(scales, dtype=torch.float64).log(), torch.zeros(len(scales)).double()], -1)
    return likelihoods.Weibull().predictive(z[None])


def test_crps_of_a_gaussian_is_the_textbooks() -> None:
    y = np.array([-1.5, 0.0, 2.0])
    z = y / 2
    expected = 2 * (z * (2 * stats.norm.cdf(z) - 1) + 2 * stats.norm.pdf(z) - 1 / math.sqrt(math.pi))
    assert metrics.crps(standard(3, 2.0), y) == pytest.approx(expected.mean(), rel=1e-10)


def test_crps_of_counts_is_the_expected_distance_less_half_the_spread() -> None:
    k = np.arange(100)
    p = stats.poisson(3.0).pmf(k)
    for y in (0, 3, 11):
        expected = p @ np.abs(k - y) - 0.5 * p @ np.abs(k[:, None] - k) @ p
        assert metrics.crps(counts(1, 3.0), [y]) == pytest.approx(expected, rel=1e-6)


def test_interval_score_adds_what_is_outside() -> None:
    half = stats.norm.ppf(0.95)
    expected = np.mean([2 * half, 2 * half + 20 * (3 - half), 2 * half + 20 * (4 - half)])
    assert metrics.interval_score(standard(3), [0.5, 3.0, -4.0], 0.9) == pytest.approx(expected, rel=1e-9)


def test_pinball_loss_is_that_of_the_quantile() -> None:
    q = stats.norm.ppf(0.8)
    expected = np.mean([0.8 * (2 - q), 0.2 * (q + 1)])
    assert metrics.pinball_loss(standard(2), [2.0, -1.0], 0.8) == pytest.approx(expected, rel=1e-9)


def test_crps_is_twice_the_mean_pinball_loss() -> None:
    levels, y = (np.arange(2000) + 0.5) / 2000, 0.7
    losses = [max(level * (y - q), (level - 1) * (y - q)) for level, q in zip(levels, stats.norm.ppf(levels), strict=True)]
    assert metrics.crps(standard(), [y]) == pytest.approx(2 * np.mean(losses), rel=1e-3)


def test_transforms_of_right_predictions_are_uniform() -> None:
    n = 4000
    generator = torch.Generator().manual_seed(0)
    of_numbers = metrics.pit(standard(n, 2.0), 2.0 * rng.normal(size=n))
    of_counts = metrics.pit(counts(n, 1.5), rng.poisson(1.5, size=n), generator)
    censored_at, time = rng.exponential(2.0, size=n), rng.exponential(1.0, size=n)
    observed = durations(np.minimum(time, censored_at), time <= censored_at)
    of_durations = metrics.pit(exponential([1.0] * n), observed, generator)
    for found in (of_numbers, of_counts, of_durations):
        assert found.shape == (n, 1)
        assert stats.kstest(found[:, 0], "uniform").pvalue > 1e-3


def test_transforms_of_wrong_predictions_are_not() -> None:
    found = metrics.pit(counts(4000, 1.5), rng.negative_binomial(1, 0.4, size=4000), torch.Generator().manual_seed(0))
    assert stats.kstest(found[:, 0], "uniform").pvalue < 1e-6


def test_concordance_counts_pairs_that_can_be_compared() -> None:
    predictive = exponential([1.0, 2.0, 3.0, 2.0])
    y = durations([2.0, 1.0, 4.0, 2.0], [1, 1, 1, 0])
    # Known: 1 < 0 (wrong), 1 < 2 (right), 1 < 3 (a tie), 0 < 2 (right), 0 < 3 as 3 was not over at 2 (right)
    assert metrics.concordance(predictive, y) == pytest.approx((0 + 1 + 0.5 + 1 + 1) / 5)
    with pytest.raises(UndefinedError, match="no pair"):
        metrics.concordance(predictive, durations([1.0, 1.0, 1.0, 1.0], [0, 0, 0, 0]))
    with pytest.raises(ValueError, match="3 rows, the prediction has 4"):
        metrics.concordance(predictive, y[:3])


def test_without_censoring_the_integrated_brier_score_is_the_mean_of_squares() -> None:
    scales, time = rng.uniform(0.5, 2.0, size=50), rng.exponential(1.0, size=50)
    times = np.linspace(0.2, 1.5, 40)
    squares = [np.mean(((time > t) - np.exp(-t / scales)) ** 2) for t in times]
    expected = np.trapezoid(squares, times) / (times[-1] - times[0])
    found = metrics.integrated_brier(exponential(scales.tolist()), durations(time), times)
    assert found == pytest.approx(expected, rel=1e-9)


def test_censoring_leaves_the_integrated_brier_score_about_what_it_was() -> None:
    n = 20_000
    scales = rng.uniform(0.5, 2.0, size=n)
    time, censored_at = rng.exponential(scales), rng.uniform(0.5, 4.0, size=n)
    times = np.linspace(0.2, 1.5, 40)
    predictive = exponential(scales.tolist())
    whole = metrics.integrated_brier(predictive, durations(time), times)
    censored = durations(np.minimum(time, censored_at), time <= censored_at)
    assert metrics.integrated_brier(predictive, censored, times) == pytest.approx(whole, rel=0.02)
    assert metrics.integrated_brier(exponential([1.0] * n), censored, times) > whole
    assert metrics.integrated_brier(predictive, censored, times, censoring=censored[:5000]) == pytest.approx(whole, rel=0.03)


def test_scores_of_durations_say_what_they_cannot_do() -> None:
    predictive = exponential([1.0, 2.0])
    with pytest.raises(UndefinedError, match="exact or right-censored"):
        metrics.concordance(predictive, torch.tensor([[0.0, 1.0], [1.0, 1.0]]))
    with pytest.raises(UndefinedError, match="no survival function"):
        metrics.integrated_brier(standard(2), durations([1.0, 2.0]))
    with pytest.raises(ValueError, match="rising"):
        metrics.integrated_brier(predictive, durations([1.0, 2.0]), [1.0])
    with pytest.raises(UndefinedError, match="smaller times"):
        metrics.integrated_brier(predictive, durations([1.0, 2.0], [1, 0]), [1.0, 3.0])
