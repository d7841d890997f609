"""Durations that are known exactly or only between bounds, against SciPy."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats
from torch import Tensor

from bali.predictive import likelihoods
from bali.predictive.durations import DurationPredictive
from bali.predictive.likelihoods import Likelihood, durations
from support.likelihood_cases import Mixed
from support.oracles import normal


def outputs(n: int, p: int, seed: int = 0) -> Tensor:
    return normal(np.random.default_rng(seed), n, p)


DURATIONS: dict[str, tuple[Likelihood, Callable[[float, float], Any]]] = {
    "Weibull": (likelihoods.Weibull(), lambda a, b: stats.weibull_min(math.exp(b), scale=math.exp(a))),
    "log-normal": (likelihoods.LogNormalDuration(), lambda a, b: stats.lognorm(math.exp(b), scale=math.exp(a))),
}
BOUNDS = torch.tensor(
    [[2.0, 2.0], [0.5, math.inf], [0.0, 1.5], [0.3, 0.4], [1.0, 9.0], [1e-3, 2e-3], [30.0, 31.0]], dtype=torch.float64
)
each_duration = pytest.mark.parametrize(("likelihood", "oracle"), DURATIONS.values(), ids=DURATIONS.keys())


@each_duration
def test_censored_durations_have_the_probability_of_their_interval(
    likelihood: Likelihood, oracle: Callable[[float, float], Any]
) -> None:
    z = 0.5 * outputs(len(BOUNDS), 2)
    value, gradient = likelihood.evaluate(z, likelihood.targets(BOUNDS, z))
    for row, (lower, upper) in enumerate(BOUNDS.tolist()):
        distribution = oracle(*z[row].tolist())
        if lower == upper:
            expected = distribution.logpdf(lower)
        elif lower > distribution.median():
            expected = math.log(distribution.sf(lower) - distribution.sf(upper))
        else:
            expected = math.log(distribution.cdf(upper) - distribution.cdf(lower))
        assert float(value[row]) == pytest.approx(expected, rel=1e-7)
    step = 1e-6
    for j in range(2):
        at = [likelihood.evaluate(z + sign * step * torch.eye(2)[j], BOUNDS)[0] for sign in (1, -1)]
        torch.testing.assert_close(gradient[:, j], (at[0] - at[1]) / (2 * step), rtol=1e-4, atol=1e-6)


@each_duration
@pytest.mark.parametrize("size", [30.0, 1e4])
def test_extreme_outputs_of_censored_durations_are_finite(likelihood: Likelihood, oracle: Any, size: float) -> None:
    z = size * torch.tensor([[a, b] for a in (-1.0, 1.0) for b in (-1.0, 1.0) for _ in BOUNDS])
    value, gradient = likelihood.evaluate(z, likelihood.targets(BOUNDS.repeat(4, 1), z))
    assert value.isfinite().all()
    assert gradient.isfinite().all()


@each_duration
def test_predictions_of_durations_know_bounds_and_survival(
    likelihood: Likelihood, oracle: Callable[[float, float], Any]
) -> None:
    z = 0.5 * normal(np.random.default_rng(1), 3, len(BOUNDS), 2)
    predictive = likelihood.predictive(z)
    assert isinstance(predictive, DurationPredictive)
    each = torch.stack([likelihood.evaluate(component, BOUNDS)[0] for component in z])
    torch.testing.assert_close(predictive.log_prob(BOUNDS), each.logsumexp(0) - math.log(3))
    times = torch.tensor([0.5, 2.0])
    survival = predictive.survival(times)
    for row in range(len(BOUNDS)):
        mixture = Mixed([1 / 3] * 3, [oracle(*z[s, row].tolist()) for s in range(3)])
        np.testing.assert_allclose(survival[row].numpy(), 1 - mixture.cdf(times.numpy()), rtol=1e-9)
        assert mixture.cdf(float(predictive.median[row])) == pytest.approx(0.5, rel=1e-6)
    low, high = predictive.cdf_bounds(BOUNDS)
    assert [float(low[0]), float(high[1]), float(low[2])] == [float(high[0]), 1.0, 0.0]


def test_times_and_events_become_bounds() -> None:
    expected = torch.tensor([[3.0, 3.0], [5.0, math.inf]], dtype=torch.float64)
    structured = np.array([(True, 3.0), (False, 5.0)], dtype=[("over", bool), ("weeks", float)])
    assert torch.equal(durations([3.0, 5.0], [1, 0]), expected)
    assert torch.equal(durations(structured), expected)
    assert torch.equal(durations(torch.tensor([3.0])), expected[:1])
