"""Counts with factors of single values, against sums over all of them."""

from __future__ import annotations

import pytest
import torch
from scipy import stats

from bali.predictive import likelihoods
from bali.predictive.family_predictive import FamilyPredictive
from bali.predictive.heaps import Heaped, heap_factors
from support.tolerances import EXACT, STANDARD_ERRORS

FACTORS = (1.1, 0.7, 1.0, 2.5)
MOST = 400
KINDS = ("Poisson", "NegativeBinomial", "ZeroInflatedNegativeBinomial")


def prediction(kind: str) -> FamilyPredictive:
    likelihood = getattr(likelihoods, kind)()
    z = torch.randn(3, 5, likelihood.n_parameters, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    return FamilyPredictive(Heaped.of(likelihood.family(z), FACTORS))


def table(predictive: FamilyPredictive) -> torch.Tensor:
    """Probabilities of 0, 1, … (MOST, n) by the definition: times the factors, over their sum, mixed."""
    family = predictive.family
    assert isinstance(family, Heaped)
    k = torch.arange(MOST, dtype=torch.float64)
    p = torch.stack([family.counts.log_prob(one).exp()[..., 0] for one in k])  # (MOST, S, n)
    p[: len(FACTORS)] *= torch.tensor(FACTORS, dtype=torch.float64)[:, None, None]
    return (p / p.sum(0)).mean(1)


@pytest.mark.parametrize("kind", KINDS)
def test_probabilities_moments_and_quantiles_are_those_of_the_sums(kind: str) -> None:
    predictive, k = prediction(kind), torch.arange(MOST, dtype=torch.float64)[:, None]
    p = table(predictive)
    mean = (k * p).sum(0)
    assert torch.allclose(predictive.mean[:, 0], mean, rtol=1e-8)
    assert torch.allclose(predictive.variance[:, 0], (k.square() * p).sum(0) - mean.square(), rtol=1e-7)
    for y in (0, 1, 3, 4, 9):
        at = torch.full((5,), float(y), dtype=torch.float64)
        assert torch.allclose(predictive.log_prob(at), p[y].log(), atol=EXACT)
        assert torch.allclose(predictive.cdf(at)[:, 0], p[: y + 1].sum(0), atol=EXACT)
        crps = (p.cumsum(0) - (k >= y).double()).square().sum(0)
        assert torch.allclose(predictive.crps(at)[:, 0], crps, atol=1e-4)  # which leaves tails of 1e-5 out
    for level in (0.1, 0.5, 0.9):
        assert torch.equal(predictive.quantiles(level)[0, :, 0], (p.cumsum(0) < level).sum(0).double())


def test_draws_are_from_these_probabilities() -> None:
    predictive, n = prediction("NegativeBinomial"), 20_000
    draws, p = predictive.sample(n, torch.Generator().manual_seed(1))[..., 0], table(predictive)
    for y in range(6):
        error = (p[y] * (1 - p[y]) / n).sqrt()
        assert bool((((draws == y).double().mean(0) - p[y]).abs() < STANDARD_ERRORS * error).all())


def test_rows_and_components_keep_their_factors() -> None:
    predictive, y = prediction("Poisson"), torch.tensor([3.0, 1.0], dtype=torch.float64)
    some = predictive.rows([1, 3])
    assert torch.allclose(some.log_prob(y), predictive.log_prob(torch.tensor([0.0, 3, 0, 1, 0]))[[1, 3]])
    assert torch.allclose(some.joined([some]).log_prob(y.repeat(2)), some.log_prob(y).repeat(2))


def test_factors_are_found_again() -> None:
    rate, n = torch.linspace(0.5, 6.0, 40_000, dtype=torch.float64), 40_000
    law = torch.tensor(stats.poisson.pmf(torch.arange(8)[None], rate[:, None]))
    truth = FamilyPredictive(Heaped.of(likelihoods.Poisson().family(rate.log()[None, :, None]), FACTORS))
    y = truth.sample(1, torch.Generator().manual_seed(2))[0, :, 0]
    found = heap_factors(law, torch.ones(n, dtype=torch.float64), torch.bincount(y.long())[:8].double())
    relative = torch.tensor(found) / torch.tensor([*FACTORS, 1.0, 1.0, 1.0, 1.0])
    assert float((relative / relative[4] - 1).abs().max()) < 0.1  # of some thousands of each, pulled to one
