"""The update with the prior in the objective: where it rests, and what it refuses."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from scipy.optimize import minimize
from torch import Tensor, nn

from bali.conjugate.matrix_normal import Kronecker
from bali.conjugate.symmetric import Dense
from bali.inference.joint import JointLayer, Pace, advance, needs_statistics, proposed_step, take_in
from bali.inference.joint_pass import Link, joint_pass
from bali.inference.linearised import layer_posterior
from bali.inference.network import Network
from bali.predictive.likelihoods import Bernoulli, Categorical, Likelihood
from bali.training.fit_calibration import WIDTHS
from support.networks import randn, seeded

N, VARIANCE = 200, 2.0
Weights = NDArray[np.float64]


def logistic_data() -> tuple[Tensor, Tensor]:
    x = randn(N, 3, seed=1)
    p = torch.sigmoid(x @ torch.tensor([1.0, -2.0, 0.5], dtype=torch.float64) + 0.3)
    return x, (torch.rand(N, generator=seeded(2), dtype=torch.float64) < p).double()


def map_estimate(x: Tensor, y: Tensor) -> Weights:
    """Of logistic regression with weights and bias of prior variance VARIANCE, by SciPy."""
    rows = np.concatenate([x.numpy(), np.ones((len(x), 1))], axis=1)
    signs = 2 * y.numpy() - 1

    def loss(w: Weights) -> float:
        return float(np.logaddexp(0.0, -signs * (rows @ w)).sum() + 0.5 * w @ w / VARIANCE)

    found: Weights = minimize(loss, np.zeros(4), method="BFGS", options={"gtol": 1e-8}).x
    return found


def trained(
    module: nn.Module, likelihood: Likelihood, x: Tensor, y: Tensor, pace: Pace, steps: int
) -> dict[str, JointLayer]:
    """Full batches, from the module's weights."""
    network = Network(module)
    layers = {name: JointLayer(layer.weights(), None, VARIANCE) for name, layer in network.layers.items()}
    for step in range(1, steps + 1):
        network.assign({name: layer.mean for name, layer in layers.items()})
        seen = joint_pass(network, likelihood, Link(), x, y, None)
        layers = {name: take_in(layer, seen.sums[name], len(x), step, pace) for name, layer in layers.items()}
        layers, _ = advance(layers, len(x), pace)
    return layers


@pytest.mark.parametrize("step_size", [0.1, 1.0, 3.0])
@pytest.mark.parametrize("damping", [0.01, 1.0])
def test_logistic_regression_rests_at_the_map_estimate(step_size: float, damping: float) -> None:
    x, y = logistic_data()
    pace = Pace(step_size, kl_bound=1.0, momentum=0.5, damping=damping)
    layers = trained(nn.Linear(3, 1).double(), Bernoulli(), x, y, pace, steps=1500)
    np.testing.assert_allclose(layers[""].mean[:, 0].numpy(), map_estimate(x, y), atol=1e-4)


def earlier_data(scale: float) -> tuple[Tensor, Kronecker]:
    """A posterior of earlier data: its mean, and A₀ ⊗ S₀ of two outputs."""
    rows = randn(50, 4, seed=11)
    s = randn(2, 5, seed=12)
    return randn(4, 2, seed=13), Kronecker(Dense(rows.mT @ rows * scale), s @ s.mT)


@pytest.mark.parametrize("step_size", [0.1, 1.0, 3.0])
@pytest.mark.parametrize("scale", [0.01, 100.0])
def test_with_earlier_data_it_rests_where_their_posterior_is_the_prior(step_size: float, scale: float) -> None:
    x, y = logistic_data()
    both = torch.stack([y, (x[:, 1] > 0).double()], 1)
    mean, earlier = earlier_data(scale)
    rows = np.concatenate([x.numpy(), np.ones((N, 1))], axis=1)
    signs = 2 * both.numpy() - 1
    precision = np.kron(earlier.inputs.dense().numpy(), earlier.outputs.numpy()) + np.eye(8) / VARIANCE

    def loss(w: Weights) -> float:
        departure = w - mean.numpy().reshape(-1)
        z = rows @ w.reshape(4, 2)
        return float(np.logaddexp(0.0, -signs * z).sum() + 0.5 * departure @ precision @ departure)

    wanted = minimize(loss, mean.numpy().reshape(-1), method="BFGS", options={"gtol": 1e-9, "maxiter": 5000}).x
    network = Network(nn.Linear(3, 2).double())
    pace = Pace(step_size, kl_bound=1.0, momentum=0.5)
    layers = {"": JointLayer(mean.clone(), mean, VARIANCE, earlier=earlier.scaled(1.0 / N))}
    for step in range(1, 2501):
        network.assign({"": layers[""].mean})
        seen = joint_pass(network, Bernoulli(), Link(), x, both, None)
        layers = {"": take_in(layers[""], seen.sums[""], N, step, pace)}
        layers, _ = advance(layers, N, pace)
    np.testing.assert_allclose(layers[""].mean.numpy().reshape(-1), wanted, atol=1e-4)


def test_a_convolution_whose_positions_are_alike_is_the_linear_layer() -> None:
    x, y = randn(40, 5, seed=3), torch.randint(3, (40,), generator=seeded(4))
    linear = nn.Linear(5, 3).double()
    conv = nn.Conv1d(5, 3, 1).double()
    with torch.no_grad():
        conv.weight.copy_(linear.weight[..., None])
        conv.bias.copy_(linear.bias)  # type: ignore[union-attr]
    pace = Pace(0.5, kl_bound=1.0)
    of_linear = trained(nn.Sequential(linear), Categorical(), x, y, pace, steps=30)["0"]
    averaged = nn.Sequential(conv, nn.AdaptiveAvgPool1d(1), nn.Flatten())
    of_conv = trained(averaged, Categorical(), x[..., None].expand(-1, -1, 4).contiguous(), y, pace, steps=30)["0"]
    torch.testing.assert_close(of_conv.mean, of_linear.mean, rtol=1e-8, atol=1e-8)


def test_a_step_that_would_change_the_outputs_too_much_is_made_smaller() -> None:
    x, y = logistic_data()
    network = Network(nn.Linear(3, 1).double())
    pace = Pace(50.0, kl_bound=1e-3)
    layers = {"": JointLayer(network.layers[""].weights(), None, VARIANCE)}
    seen = joint_pass(network, Bernoulli(), Link(), x, y, None)
    layers = {"": take_in(layers[""], seen.sums[""], len(x), 1, pace)}
    after, share = advance(layers, len(x), pace)
    assert 0.0 < share < 0.1
    before_z, after_z = ((torch.cat([x, torch.ones(N, 1).double()], 1) @ la[""].mean).squeeze(1) for la in (layers, after))
    p, q = torch.sigmoid(before_z), torch.sigmoid(after_z)
    kl = (p * (p / q).log() + (1 - p) * ((1 - p) / (1 - q)).log()).mean()
    assert float(kl) < 4e-3  # the estimate is one of second order


def test_a_step_that_is_not_finite_is_refused() -> None:
    x, y = logistic_data()
    network = Network(nn.Linear(3, 1).double())
    pace = Pace(1.0, kl_bound=1.0)
    layers = {"": JointLayer(network.layers[""].weights(), None, VARIANCE)}
    seen = joint_pass(network, Bernoulli(), Link(), x, y, None)
    layers = {"": take_in(layers[""], seen.sums[""], len(x), 1, pace)}
    broken = {"": replace(layers[""], drive=torch.full_like(layers[""].mean, float("inf")))}
    after, share = advance(broken, len(x), pace)
    assert share == 0.0
    assert torch.equal(after[""].mean, layers[""].mean)


@pytest.mark.parametrize("step_size", [0.1, 0.5, 2.0])
def test_the_width_is_that_of_laplace_whatever_the_step_size(step_size: float) -> None:
    x, y = logistic_data()
    layer = trained(nn.Linear(3, 1).double(), Bernoulli(), x, y, Pace(step_size, kl_bound=1.0, momentum=0.5), 800)[""]
    posterior = layer_posterior(layer, N, "").with_width(WIDTHS[-1])
    rows = torch.cat([x, torch.ones(N, 1).double()], 1)
    p = torch.sigmoid(rows @ layer.mean).squeeze(1)
    hessian = rows.mT @ (rows * (p * (1 - p))[:, None]) + torch.eye(4).double() / VARIANCE
    far = torch.tensor([3.0, 3.0, -3.0, 1.0]).double()
    laplace = float((far @ torch.linalg.solve(hessian, far)).sqrt())
    ours = float(posterior.output_covariance(far[None]).sqrt())
    assert 0.75 < ours / laplace < 1.25


def test_the_divergence_of_a_step_is_that_of_both_curvatures() -> None:
    """tr(ΔᵀAΔS)/2, also where how S weighs it is known from an earlier step."""
    x, y = randn(30, 5, seed=6), torch.randint(3, (30,), generator=seeded(7))
    network, pace = Network(nn.Linear(5, 3).double()), Pace(0.5, kl_bound=1.0)
    layer = JointLayer(network.layers[""].weights(), None, VARIANCE)
    seen = joint_pass(network, Categorical(), Link(), x, y, None)
    layer = take_in(layer, seen.sums[""], len(x), 1, pace)
    step, steepness, divergence = proposed_step(layer, N, pace)
    assert layer.inputs is not None
    assert layer.gradients is not None
    expected = 0.5 * torch.trace(step.mT @ layer.inputs.dense() @ step @ layer.gradients)
    torch.testing.assert_close(divergence, expected, rtol=1e-8, atol=0.0)
    *_, again = proposed_step(replace(layer, steepness=steepness), N, pace)
    torch.testing.assert_close(again, divergence, rtol=1e-10, atol=0.0)


def test_steps_without_statistics_keep_the_curvatures_and_take_in_gradients() -> None:
    x, y = randn(30, 5, seed=6), torch.randint(3, (30,), generator=seeded(7))
    network, pace = Network(nn.Linear(5, 3).double()), Pace(0.5, kl_bound=1.0, momentum=0.5)
    layer = JointLayer(network.layers[""].weights(), None, VARIANCE)
    assert [step for step in range(1, 17) if needs_statistics(step)] == [1, 2, 3, 4, 5, 8, 12, 16]
    for step in range(1, 6):
        sums = joint_pass(network, Categorical(), Link(), x, y, None, step).sums[""]
        layer = take_in(layer, sums, len(x), step, pace)
    light = joint_pass(network, Categorical(), Link(), x[:10], y[:10], None, None).sums[""]
    assert layer.drive is not None
    expected = 0.5 * (layer.drive + light.xy)  # the sums are used up
    after = take_in(layer, light, 10, 6, pace)
    assert after.inputs is layer.inputs
    assert after.gradients is layer.gradients
    torch.testing.assert_close(after.drive, expected, rtol=1e-12, atol=1e-12)
