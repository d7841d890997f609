"""Mixtures of stacks: closed forms against dense Bayesian linear regression, draws against their moments."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy import stats

from bali.predictive.likelihoods import Categorical, Gaussian
from bali.predictive.mixtures import ClassPredictive, RegressionPredictive
from bali.training.table_posterior import MEMBERS, WIDTH, RowNoise, TablePosterior
from support.networks import randn
from support.oracles import array, assert_close, assert_mean
from support.stacked import stack, with_ones
from support.tolerances import STEPS

VARIANCE, NOISE = 2.0, 0.3


def regression(k: int = 2) -> tuple[TablePosterior, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Networks whose output layer is at the mean of its exact posterior for rows x, y."""
    x, y = randn(30, 3, seed=1), randn(30, 1, seed=2)
    hidden = randn(k, 4, 6, seed=3)
    phi = with_ones(torch.tanh(with_ones(x) @ hidden))
    precision = phi.mT @ phi + NOISE / VARIANCE * torch.eye(7).double()
    out = torch.linalg.solve(precision, phi.mT @ y)
    found = stack([hidden, out], x, variance=VARIANCE)
    noise = torch.full((1, 1), NOISE, dtype=torch.float64)
    return TablePosterior((found,), (Gaussian(),), seed=0, noise=noise), x, y, hidden


def test_a_regression_is_bayesian_linear_regression_on_the_features() -> None:
    posterior, x, y, hidden = regression()
    new = randn(5, 3, seed=4) * 3
    predictive = posterior.predictive([new], 1)
    assert isinstance(predictive, RegressionPredictive)
    at = randn(5, 1, seed=5)
    found = predictive.component_log_prob(at)
    for k in range(2):
        phi, phi_new = (array(with_ones(torch.tanh(with_ones(rows) @ hidden[k]))) for rows in (x, new))
        covariance = np.linalg.inv(phi.T @ phi / NOISE + np.eye(7) / VARIANCE)
        mean = covariance @ phi.T @ array(y)[:, 0] / NOISE
        for i, row in enumerate(phi_new):
            law = stats.norm(row @ mean, np.sqrt(NOISE + row @ covariance @ row))
            assert_close(found[k, i], float(law.logpdf(float(at[i, 0]))), STEPS)


def test_more_noise_means_a_stronger_prior() -> None:
    posterior, _, _, _ = regression()
    new = 5.0 * randn(4, 3, seed=4)
    assert posterior.noise is not None
    quiet, loud = (replace(posterior, noise=c * posterior.noise).predictive([new], 1) for c in (0.01, 100.0))
    assert isinstance(quiet, RegressionPredictive)
    assert isinstance(loud, RegressionPredictive)
    assert quiet.inflation is not None
    assert loud.inflation is not None
    assert (quiet.inflation > loud.inflation).all()


def test_stacks_with_encodings_of_their_own_are_mixed() -> None:
    one, x, _, _ = regression()
    wide = torch.cat([x, x[:, :1].square()], 1)
    other = stack([randn(3, 5, 4, seed=8), randn(3, 5, 1, seed=9)], wide)
    both = replace(one, stacks=(*one.stacks, other), likelihoods=(Gaussian(), Gaussian()))
    predictive = both.predictive([x, wide], 1)
    assert predictive.n_components == both.n_members == 5
    alone = one.predictive([x], 1).component_log_prob(torch.zeros(30, 1))
    assert_close(predictive.component_log_prob(torch.zeros(30, 1))[:2], alone)
    some = both.predictive([x, wide], 1, members=[1])
    every = predictive.component_log_prob(torch.zeros(30, 1))
    assert_close(some.component_log_prob(torch.zeros(30, 1)), every[[1, 3]])


def test_the_noise_of_a_row_goes_by_the_mean_of_all_members() -> None:
    posterior, x, _, _ = regression()
    means = [0.1 * randn(MEMBERS, 3 + 1 + 1, WIDTH, seed=1), 0.1 * randn(MEMBERS, WIDTH + 1, 1, seed=2)]
    row_noise = RowNoise(means, torch.ones(1).double(), 0.1)
    predictive = replace(posterior, row_noise=row_noise).predictive([x], 1)
    assert isinstance(predictive, RegressionPredictive)
    assert predictive.row_scale is not None
    assert_close(predictive.row_scale, row_noise(x, predictive.mean))
    assert predictive.row_scale.std() > 0.01


def test_draws_have_the_moments_of_the_posterior() -> None:
    """Of a linear stack, whose outputs are Gaussian."""
    x = randn(40, 3, seed=1)
    means = randn(2, 4, 2, seed=2)
    found = stack([means], x, variance=VARIANCE, curvature=0.5)
    new, width = randn(3, 3, seed=5), 0.05
    draws = found.draws(new, 4000, width, seed=1).reshape(4000, 2, 3, 2)
    expected = with_ones(new) @ means
    assert_mean(array(draws), array(expected))
    covariance = found.layers[0].with_width(width).output_covariance(with_ones(new).expand(2, -1, -1))
    centred = array(draws - expected)
    assert_mean(np.einsum("skni,sknj->sknij", centred, centred), array(covariance))
    torch.testing.assert_close(found.draws(new, 5, width, seed=1), found.draws(new, 5, width, seed=1), rtol=0, atol=0)


@pytest.mark.parametrize("temperature", [1.0, 2.5])
def test_classes_have_offset_and_temperature(temperature: float) -> None:
    x = randn(40, 3, seed=1)
    found = stack([randn(2, 4, 3, seed=2)], x, curvature=1e9)  # of no width
    offset = torch.tensor([0.5, -1.0, 0.0]).double()
    posterior = TablePosterior((found,), (Categorical(),), 0, width=0.1, temperature=temperature, offset=offset)
    predictive = posterior.predictive([x], 6)
    assert isinstance(predictive, ClassPredictive)
    assert predictive.n_components == 6
    expected = (temperature * (found.outputs(x)[0] + offset)).softmax(-1).mean(0)
    assert_close(predictive.probabilities, expected, 1e-3)
