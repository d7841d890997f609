"""What single likelihoods have beside the contract: classes and grades, correlations, scores, and doors to others."""

from __future__ import annotations

import math
import subprocess
import sys
from typing import Any

import numpy as np
import pytest
import torch
from scipy import special, stats
from torch import Tensor, distributions, nn

from bali.predictive import likelihoods
from bali.predictive.families import Normal, StudentT
from bali.predictive.family_predictive import FamilyPredictive
from bali.predictive.likelihoods import Likelihood, as_likelihood, from_distribution, from_log_density
from bali.predictive.mixtures import ClassPredictive, RegressionPredictive
from bali.predictive.predictive_base import UndefinedError
from bali.predictive.quantiles import _integral, crps
from support.likelihood_cases import Mixed
from support.oracles import normal


def outputs(n: int, p: int, seed: int = 0) -> Tensor:
    return normal(np.random.default_rng(seed), n, p)


# --- classes and grades ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("likelihood", [likelihoods.Categorical(), likelihoods.Bernoulli(), likelihoods.Ordinal()], ids=repr)
def test_gradients_of_classes_are_those_of_finite_differences(likelihood: Likelihood) -> None:
    z, step = outputs(6, 3), 1e-6
    y = torch.tensor([0, 1, 2, 0, 1, 2])
    if isinstance(likelihood, likelihoods.Bernoulli):
        y = (torch.arange(18).reshape(6, 3) % 2).double()
    _, gradient = likelihood.evaluate(z, likelihood.targets(y, z))
    for j in range(3):
        at = [likelihood.evaluate(z + sign * step * torch.eye(3)[j], likelihood.targets(y, z))[0] for sign in (1, -1)]
        torch.testing.assert_close(gradient[:, j], (at[0] - at[1]) / (2 * step), rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("size", [1.0, 100.0, 1e4])
@pytest.mark.parametrize("likelihood", [likelihoods.Categorical(), likelihoods.Bernoulli(), likelihoods.Ordinal()], ids=repr)
def test_extreme_outputs_of_classes_are_finite_in_float32(likelihood: Likelihood, size: float) -> None:
    z = size * torch.sign(outputs(100, 3)).float()
    y = torch.zeros(100, 3) if isinstance(likelihood, likelihoods.Bernoulli) else torch.arange(100) % 3
    value, gradient = likelihood.evaluate(z, likelihood.targets(y, z))
    assert value.isfinite().all()
    assert gradient.isfinite().all()


def test_grades_are_differences_of_cumulative_logits() -> None:
    z = outputs(5, 3)
    cut = np.cumsum(np.column_stack([z[:, :1].numpy(), np.log1p(np.exp(z[:, 1:].numpy()))]), axis=1)
    cumulative = np.column_stack([np.zeros(5), special.expit(cut), np.ones(5)])
    expected = np.diff(cumulative, axis=1)
    predictive = likelihoods.Ordinal().predictive(z[None])
    assert isinstance(predictive, ClassPredictive)
    np.testing.assert_allclose(predictive.probabilities.numpy(), expected, rtol=1e-10)
    value, _ = likelihoods.Ordinal().evaluate(z, torch.tensor([0, 1, 2, 3, 3]))
    np.testing.assert_allclose(value.exp().numpy(), expected[np.arange(5), [0, 1, 2, 3, 3]], rtol=1e-10)


def test_outputs_for_classes_are_counted_from_the_labels() -> None:
    assert likelihoods.Categorical().n_outputs(torch.tensor([0, 4, 2])) == 5
    assert likelihoods.Ordinal().n_outputs(torch.tensor([0, 4, 2])) == 4
    assert likelihoods.Bernoulli().n_outputs(torch.zeros(3)) == 1
    assert likelihoods.Gaussian().n_outputs(torch.zeros(3, 2)) == 2


def test_classes_have_no_quantiles_and_say_so() -> None:
    predictive = likelihoods.Categorical().predictive(outputs(2, 3)[None])
    for ask in (lambda y: predictive.quantiles(0.5), predictive.cdf, predictive.crps):
        with pytest.raises(UndefinedError, match="ClassPredictive has not got"):
            ask(torch.zeros(2))


# --- Gaussians ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("d", [1, 2, 3])
def test_correlated_noise_is_scipys_multivariate_normal(d: int) -> None:
    likelihood = likelihoods.GaussianByRow(correlated=True)
    y = outputs(4, d, seed=1)
    z = outputs(4, likelihood.n_outputs(y))
    value, _ = likelihood.evaluate(z, likelihood.targets(y, z))
    for row in range(4):
        factor, entries = np.eye(d), iter(z[row, 2 * d :].tolist())
        for i in range(d):
            for j in range(i):
                factor[i, j] = next(entries)
            factor[i] *= math.exp(float(z[row, d + i]))
        expected = stats.multivariate_normal(z[row, :d].numpy(), factor @ factor.T).logpdf(y[row].numpy())
        assert float(value[row]) == pytest.approx(expected, rel=1e-9)


def test_samples_of_correlated_noise_are_correlated() -> None:
    z = torch.tensor([[[0.0, 0.0, 0.0, 0.0, 1.0]]], dtype=torch.float64)
    draws = likelihoods.GaussianByRow(correlated=True).predictive(z).sample(20_000, torch.Generator().manual_seed(0))[:, 0]
    np.testing.assert_allclose(np.cov(draws.numpy().T), [[1, 1], [1, 2]], atol=0.06)


@pytest.mark.parametrize("width", [1.0, 1e-3])
def test_the_integral_and_the_pairs_give_one_crps(width: float) -> None:
    """Narrow components far apart make steps that a fixed grid would miss."""
    family = Normal(3 * outputs(6, 8).reshape(6, 4, 2), width * outputs(6, 8, seed=2).reshape(6, 4, 2).exp())
    y = outputs(4, 2, seed=3)
    torch.testing.assert_close(_integral(family, y), crps(family, y), rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("dof", [None, 4.0])
def test_regressions_have_a_crps(dof: float | None) -> None:
    means, y = outputs(5, 3).reshape(5, 3, 1), outputs(3, 1, seed=2)
    noise = torch.full((1, 1, 1), 0.3, dtype=torch.float64)
    found = RegressionPredictive(means, noise, dof=dof).crps(y)
    for row in range(3):
        locs = means[:, row, 0].tolist()
        parts = [stats.norm(m, math.sqrt(0.3)) if dof is None else stats.t(dof, m, math.sqrt(0.3)) for m in locs]
        expected = Mixed([0.2] * 5, parts).crps(float(y[row]), -60.0, 60.0)
        assert float(found[row]) == pytest.approx(expected, rel=1e-5)


def test_a_mixture_of_very_many_components_is_scored_in_pieces() -> None:
    many = Normal(outputs(600, 40).reshape(600, 40, 1), torch.ones(600, 40, 1, dtype=torch.float64))
    y = outputs(40, 1, seed=2)
    sample = stats.norm(0, math.sqrt(2))
    near = [float(Mixed([1.0], [sample]).crps(float(v), -12.0, 12.0)) for v in y[:2]]
    np.testing.assert_allclose(crps(many, y)[:2, 0].numpy(), near, rtol=0.1)


@pytest.mark.parametrize("dof", [0.7, 3.0, 30.0, 300.0])
def test_the_interpolated_distribution_function_is_scipys(dof: float) -> None:
    x = torch.cat([torch.linspace(-30, 30, 5001), torch.tensor([-1e12, -1e4, 1e4, 1e12, -math.inf, math.inf])]).double()
    found = StudentT(torch.zeros_like(x), torch.ones_like(x), dof).cdf(x)
    np.testing.assert_allclose(found.numpy(), stats.t(dof).cdf(x.numpy()), rtol=0, atol=1e-10)


def test_a_tail_too_heavy_for_a_mean_says_so() -> None:
    z = outputs(3, 2)[None]
    with pytest.raises(UndefinedError, match="mean with 1 degrees of freedom; ask for the median"):
        likelihoods.StudentT(1.0).predictive(z).mean  # noqa: B018
    with pytest.raises(UndefinedError, match=r"variance with 1\.5 degrees"):
        likelihoods.StudentT(1.5).predictive(z).std  # noqa: B018
    torch.testing.assert_close(likelihoods.StudentT(1.0).predictive(z).median[:, 0], z[0, :, 0])


def test_torchs_cauchy_has_no_mean_but_quantiles() -> None:
    cauchy = from_distribution(lambda z: distributions.Cauchy(z[..., 0], z[..., 1].exp()))
    predictive = cauchy.predictive(outputs(3, 2)[None])
    with pytest.raises(UndefinedError, match="Cauchy with these parameters has not got a mean"):
        predictive.mean  # noqa: B018
    torch.testing.assert_close(predictive.median[:, 0], outputs(3, 2)[:, 0])


# --- doors ----------------------------------------------------------------------------------------------------------


def test_a_log_density_of_ones_own_is_a_likelihood() -> None:
    laplace = from_log_density(lambda z, y: -(y[..., 0] - z[..., 0]).abs() - math.log(2), n_outputs=1)
    z, y = outputs(4, 1), outputs(4, 1, seed=1)
    value, gradient = laplace.evaluate(z, laplace.targets(y[:, 0], z))
    np.testing.assert_allclose(value.numpy(), stats.laplace.logpdf(y[:, 0], z[:, 0]), rtol=1e-10)
    torch.testing.assert_close(gradient, torch.sign(y - z))
    torch.testing.assert_close(laplace.predictive(z[None]).log_prob(y), value)
    assert laplace.n_outputs(y) == 1
    with pytest.raises(UndefinedError, match="only a log-density has not got a mean"):
        laplace.predictive(z[None]).mean  # noqa: B018
    with pytest.raises(UndefinedError, match="not got samples"):
        laplace.predictive(z[None]).sample(1)
    wrong = from_log_density(lambda z, y: -(y - z).abs())
    with pytest.raises(ValueError, match="one number for each row"):
        wrong.evaluate(z, y)


def test_distributions_over_whole_rows_and_over_columns() -> None:
    z, y = outputs(5, 2), outputs(5, 2, seed=1)
    joint = from_distribution(lambda z: distributions.MultivariateNormal(z, torch.eye(2, dtype=z.dtype)))
    by_column = from_distribution(lambda z: distributions.Normal(z, 1.0))
    torch.testing.assert_close(joint.evaluate(z, joint.targets(y, z)), by_column.evaluate(z, by_column.targets(y, z)))
    torch.testing.assert_close(joint.predictive(z[None]).mean, z)
    assert joint.predictive(z[None]).sample(7, torch.Generator().manual_seed(0)).shape == (7, 5, 2)
    with pytest.raises(UndefinedError, match="MultivariateNormal of torch has not got a distribution function"):
        joint.predictive(z[None]).quantiles(0.5)
    with pytest.raises(ValueError, match="one observation for each row"):
        from_distribution(lambda z: distributions.Normal(z.sum(), 1.0)).targets(y, z)
    with pytest.raises(UndefinedError, match="give n_outputs"):
        joint.n_outputs(y)


def test_classes_and_losses_stand_for_likelihoods() -> None:
    given: dict[Any, type[Likelihood]] = {
        likelihoods.Poisson: likelihoods.Poisson,
        nn.CrossEntropyLoss(): likelihoods.Categorical,
        nn.MSELoss(): likelihoods.Gaussian,
        nn.GaussianNLLLoss(): likelihoods.GaussianByRow,
        nn.BCEWithLogitsLoss(): likelihoods.Bernoulli,
        nn.PoissonNLLLoss(): likelihoods.Poisson,
    }
    for thing, expected in given.items():
        assert type(as_likelihood(thing)) is expected
    own = likelihoods.StudentT(3.0)
    assert as_likelihood(own) is own


@pytest.mark.parametrize(
    ("given", "error", "message"),
    [
        (nn.CrossEntropyLoss(label_smoothing=0.1), ValueError, "label_smoothing=0.1"),
        (nn.CrossEntropyLoss(weight=torch.ones(3)), ValueError, "weight"),
        (nn.PoissonNLLLoss(log_input=False), ValueError, "log_input=False"),
        (nn.BCEWithLogitsLoss(pos_weight=torch.tensor(2.0)), ValueError, "pos_weight"),
        (nn.L1Loss(), TypeError, "L1Loss.. is no likelihood. Give one of bali.likelihoods"),
        ("poisson", TypeError, "from_distribution"),
    ],
)
def test_what_is_no_likelihood_is_refused(given: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        as_likelihood(given)


def test_scipy_is_loaded_only_when_it_is_needed() -> None:
    code = "import torch, sys; old = set(sys.modules); import bali.predictive.likelihoods; print(set(sys.modules) - old)"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert "bali.predictive.mixtures" in loaded
    assert not any(name in loaded for name in ("'scipy", "'sklearn", "'matplotlib"))


def test_columns_vary_together_as_their_draws_do() -> None:
    z = torch.randn(3, 2, 5, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    predictive = likelihoods.GaussianByRow(correlated=True).predictive(z)
    assert isinstance(predictive, FamilyPredictive)
    draws = predictive.sample(100_000, torch.Generator().manual_seed(1))
    for row in range(2):
        found = np.cov(draws[:, row].numpy().T)
        np.testing.assert_allclose(predictive.covariance[row].numpy(), found, atol=0.03 * np.trace(found))
    np.testing.assert_allclose(predictive.covariance.diagonal(dim1=1, dim2=2), predictive.variance)
