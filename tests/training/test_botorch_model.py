"""BoTorch's own acquisition functions and optimizers, on a fitted network."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import bali
from support.networks import seeded

pytest.importorskip("botorch", reason="BoTorch is an extra: pip install 'bali-torch[botorch]'")

from botorch.acquisition.knowledge_gradient import qKnowledgeGradient
from botorch.acquisition.logei import qLogExpectedImprovement
from botorch.acquisition.multi_objective.monte_carlo import qExpectedHypervolumeImprovement
from botorch.exceptions.warnings import NumericsWarning
from botorch.optim import optimize_acqf
from botorch.utils.multi_objective.box_decompositions import NondominatedPartitioning

BOUNDS = torch.tensor([[0.0, 0.0], [1.0, 1.0]], dtype=torch.float64)


def rows() -> tuple[Tensor, Tensor]:
    """Two numbers to make large: one is largest at (.26, 1), the other at (.3, .3)."""
    x = torch.rand(30, 2, generator=seeded(0), dtype=torch.float64)
    return x, torch.stack([torch.sin(6 * x[:, 0]) + x[:, 1], -(x - 0.3).square().sum(1)], 1)


def fitted(m: int) -> Any:
    x, y = rows()
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(2, 24), nn.GELU(), nn.Linear(24, 24), nn.GELU(), nn.Linear(24, m)).double()
    return bali.fit(module, (x, y[:, :m]), bali.likelihoods.Gaussian(), epochs=200, verbose=False, seed=0)


@pytest.fixture(scope="module")
def one() -> Any:
    return bali.BoTorchModel(fitted(1).output_regression(rows()[0], 8))


@pytest.fixture(scope="module")
def two() -> Any:
    return bali.BoTorchModel(fitted(2).output_regression(rows()[0], 8))


def optimum(acquisition: Any, q: int = 1) -> Tensor:
    torch.manual_seed(0)
    found, _ = optimize_acqf(acquisition, BOUNDS, q=q, num_restarts=2, raw_samples=16, options={"maxiter": 15})
    return torch.as_tensor(found)


def test_a_posterior_is_joint_over_points_and_outputs_and_differentiable(two: Any) -> None:
    x = torch.rand(3, 4, 2, generator=seeded(1), dtype=torch.float64, requires_grad=True)
    posterior = two.posterior(x)
    assert posterior.mean.shape == (3, 4, 2)
    assert posterior.distribution.covariance_matrix.shape == (3, 8, 8)
    assert posterior.rsample(torch.Size([5])).shape == (5, 3, 4, 2)
    joint = two.regression(x).predict(x[0].detach(), 4096).means.flatten(1)  # functions with fixed weights, at four points
    found, drawn = posterior.distribution.covariance_matrix[0].detach().clone(), joint.T.cov(correction=0)
    assert float((found - drawn).norm() / drawn.norm()) < 0.1
    assert float(found.fill_diagonal_(0.0).abs().max()) > 0
    single = two.posterior(x[1:2, 2:3])
    torch.testing.assert_close(single.mean[0, 0], posterior.mean[1, 2])
    torch.testing.assert_close(single.variance[0, 0], posterior.variance[1, 2])
    torch.testing.assert_close(two.posterior(x, output_indices=[1]).mean, posterior.mean[..., 1:])
    noisy = two.posterior(x, observation_noise=True)
    assert bool((noisy.variance > posterior.variance).all())


def test_means_and_covariances_have_the_derivatives_of_finite_differences(two: Any) -> None:
    def value(x: Tensor) -> Tensor:
        posterior = two.posterior(x)
        return posterior.mean.sum() + posterior.distribution.covariance_matrix.sum()

    x = torch.rand(2, 3, 2, generator=seeded(4), dtype=torch.float64)
    assert torch.autograd.gradcheck(value, x.clone().requires_grad_(True), rtol=1e-4)


def test_expected_improvement_finds_the_largest_value(one: Any) -> None:
    _, y = rows()
    found = optimum(qLogExpectedImprovement(one, best_f=float(y[:, 0].max())))
    assert abs(float(found[0, 0]) - 0.26) < 0.15
    assert float(found[0, 1]) > 0.8


def test_knowledge_gradient_runs(one: Any) -> None:
    torch.manual_seed(0)
    acquisition = qKnowledgeGradient(one, num_fantasies=4)
    found, value = optimize_acqf(acquisition, BOUNDS, q=1, num_restarts=2, raw_samples=16, options={"maxiter": 15})
    assert found.shape == (1, 2)
    assert bool(((found >= 0) & (found <= 1)).all())
    assert float(value) > float(one.posterior(rows()[0]).mean.max())  # what is known to be best, one observation later


def test_hypervolume_improvement_runs(two: Any) -> None:
    _, y = rows()
    reference = [-1.0, -1.0]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", NumericsWarning)  # recommends its logarithm
        partitioning = NondominatedPartitioning(torch.tensor(reference, dtype=torch.float64), Y=y)
        acquisition = qExpectedHypervolumeImprovement(two, ref_point=reference, partitioning=partitioning)
    found = optimum(acquisition, q=2)
    assert found.shape == (2, 2)
    assert bool(((found >= 0) & (found <= 1)).all())


def test_observations_are_conditioned_on_exactly_and_fantasies_by_the_joint_gaussian(one: Any) -> None:
    x = torch.tensor([[0.9, 0.1], [0.2, 0.2]], dtype=torch.float64)
    y = torch.tensor([[1.0], [2.0]], dtype=torch.float64)
    at = torch.rand(5, 2, generator=seeded(2), dtype=torch.float64)
    exact = one.condition_on_observations(x, y)
    torch.testing.assert_close(
        exact.posterior(at).mean, bali.BoTorchModel(one.regression(x).condition(x, y)).posterior(at).mean
    )
    assert exact.batch_shape == torch.Size([])
    several = one.condition_on_observations(x, torch.stack([y, y + 1, y - 1]))
    assert several.batch_shape == (3,)
    posterior = several.posterior(at)
    assert posterior.mean.shape == (3, 5, 1)
    prior = one.posterior(torch.cat([at, x]))
    mean, covariance = prior.mean[:, 0].detach(), prior.distribution.covariance_matrix.detach()
    noisy = covariance[5:, 5:] + float(one.regression(x).noise) * torch.eye(2)
    gain = covariance[:5, 5:] @ torch.linalg.inv(noisy)
    for number, values in enumerate((y, y + 1, y - 1)):
        wanted = mean[:5] + gain @ (values[:, 0] - mean[5:])
        np.testing.assert_allclose(posterior.mean[number, :, 0].detach().numpy(), wanted.numpy(), rtol=1e-6)
    twice = several.condition_on_observations(x, torch.stack([y, y, y]))
    assert twice.posterior(at).variance.shape == (3, 5, 1)
    assert bool((twice.posterior(at).variance <= posterior.variance + 1e-9).all())


def test_points_that_come_twice_are_drawn_alike(one: Any) -> None:
    x = torch.rand(2, 2, generator=seeded(5), dtype=torch.float64)
    posterior = one.posterior(torch.cat([x, x, rows()[0]]))
    drawn = posterior.rsample(torch.Size([4]))
    torch.testing.assert_close(drawn[:, :2], drawn[:, 2:4], rtol=0.0, atol=1e-3 * float(posterior.variance.max().sqrt()))


def test_paths_have_fixed_weights(two: Any) -> None:
    x = torch.rand(6, 2, generator=seeded(3), dtype=torch.float64)
    paths = two.paths(x, 16)
    values = paths.posterior(x).values
    assert values.shape == (16, 6, 2)
    torch.testing.assert_close(paths.posterior(x[2:3]).values[:, 0], values[:, 2])


def test_a_fitted_network_is_taken_as_it_is() -> None:
    model = bali.BoTorchModel(fitted(1))
    assert model.num_outputs == 1
    x, y = rows()
    found = optimum(qLogExpectedImprovement(model, best_f=float(y[:, 0].max())))
    assert found.shape == (1, 2)
    assert model.posterior(x[:2]).mean.shape == (2, 1)
