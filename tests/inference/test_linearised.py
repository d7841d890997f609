"""The expansion of a network about its weights, against differences in float64, and a linear network's exact posterior."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import bali
from bali.conjugate.matrix_normal import SumNormal
from bali.conjugate.symmetric import Dense
from bali.inference.linearised import Expansion
from bali.inference.network import Network
from support.networks import seeded


class Recurrent(nn.Module):
    def __init__(self, kind: type[nn.Module]) -> None:
        super().__init__()
        self.recurrence, self.head = kind(4, 5, batch_first=True), nn.Linear(5, 2)

    def forward(self, x: Tensor) -> Tensor:
        z: Tensor = self.head(self.recurrence(x)[0][:, -1])
        return z


class Attending(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(4, 2, 8, dropout=0.0, batch_first=True)
        self.encoder, self.head = nn.TransformerEncoder(layer, 1, enable_nested_tensor=False), nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        z: Tensor = self.head(self.encoder(x).mean(1))
        return z


class OwnFunction(torch.autograd.Function):
    """A function of a user's own, without a forward mode."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x.sin()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return gradient * ctx.saved_tensors[0].cos()


class WithOwnFunction(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(4, 6), nn.Linear(6, 2)

    def forward(self, x: Tensor) -> Tensor:
        hidden = OwnFunction.apply(self.first(x[:, 0]))  # type: ignore[no-untyped-call]
        z: Tensor = self.second(hidden)
        return z


def convolutional() -> nn.Module:
    return nn.Sequential(
        nn.Unflatten(1, (1, 3)), nn.Conv2d(1, 3, 2), nn.BatchNorm2d(3), nn.ReLU(), nn.Flatten(), nn.Linear(18, 2)
    )


NETWORKS = {
    "GRU": lambda: Recurrent(nn.GRU),
    "LSTM": lambda: Recurrent(nn.LSTM),
    "transformer": Attending,
    "convolution": convolutional,
    "own function": WithOwnFunction,
}


@pytest.mark.parametrize("name", list(NETWORKS))
def test_the_derivative_is_that_of_differences(name: str) -> None:
    torch.manual_seed(0)
    module = NETWORKS[name]().double().eval()
    network, x = Network(module, has_optimizer=True), torch.randn(5, 3, 4, dtype=torch.float64)
    generator = seeded(1)
    departures = {
        key: torch.randn(w.shape, generator=generator, dtype=torch.float64) for key, w in network.weights().items()
    }
    before = network.weights()
    with network.evaluating():
        output, change = Expansion(network).change(x, departures)
        assert torch.equal(output, network.plain_output(x)) or torch.allclose(output, network.plain_output(x), rtol=1e-12)
        kept, step = network.weights(), 1e-6
        assert all(torch.equal(before[key], weights) for key, weights in kept.items())
        found = []
        for sign in (1, -1):
            network.assign({key: kept[key] + sign * step * departures[key] for key in kept})
            found.append(network.plain_output(x))
        network.assign(kept)
    tolerance = 1e-3 if name == "own function" else 1e-6  # differences of its own
    torch.testing.assert_close(change, (found[0] - found[1]) / (2 * step), rtol=tolerance, atol=tolerance)


def test_a_sum_normal_is_the_posterior_of_a_linear_regression() -> None:
    x = torch.randn(30, 4, generator=seeded(0), dtype=torch.float64)
    noise, variance, width = 0.3, 2.0, 5.0
    posterior = SumNormal.of(
        torch.zeros(4, 1, dtype=torch.float64), Dense(x.mT @ x, "inputs"), torch.eye(1).double() / noise**2, variance, "it"
    ).with_width(width)
    at = torch.randn(6, 4, generator=seeded(1), dtype=torch.float64)
    precision = x.mT @ x / noise**2 + torch.eye(4).double() / (variance * width)
    expected = (at * torch.linalg.solve(precision, at.mT).mT).sum(-1)
    torch.testing.assert_close(posterior.output_covariance(at)[:, 0, 0], expected, rtol=1e-10, atol=0.0)
    normal = torch.randn(4000, 4, 1, generator=seeded(2), dtype=torch.float64)
    sampled = torch.stack([posterior.departure_from(one) for one in normal])[..., 0]
    torch.testing.assert_close(sampled.mT @ sampled / 4000, torch.linalg.inv(precision), rtol=0.2, atol=0.002)


def test_a_linear_network_predicts_as_bayesian_regression_does() -> None:
    """One layer: neither the expansion nor the curvature is an approximation; noise and width are the fit's own."""
    x = torch.randn(300, 3, generator=seeded(0), dtype=torch.float64)
    y = x @ torch.tensor([1.0, -2.0, 0.5]).double() + 0.3 * torch.randn(300, generator=seeded(1), dtype=torch.float64)
    torch.manual_seed(0)
    fitted = bali.fit(nn.Linear(3, 1).double(), (x[:270], y[:270]), bali.likelihoods.Gaussian(), seed=0, verbose=False)
    at = 4 * x[270:]
    predicted = fitted.predict(at, n_samples=4000)
    assert fitted.calibration.noise is not None
    assert fitted.units is not None
    noise = float(fitted.calibration.noise) * float(fitted.units.scale) ** 2
    ones = torch.ones(243, 1, dtype=torch.float64)
    rows = torch.cat([x[:243], ones], 1)  # about as many as were not held out; the prior is weak
    covariance = noise * torch.linalg.inv(rows.mT @ rows)
    far = torch.cat([at, ones[: len(at)]], 1)
    expected = (far @ covariance * far).sum(-1)
    ratio = predicted.epistemic[:, 0] / expected
    assert float(ratio.min()) > 0.5
    assert float(ratio.max()) < 2.0


def test_a_regression_is_unsure_far_from_its_data() -> None:
    assert sum(_far_points_within(seed) for seed in range(4)) >= 11  # of 16; a Gaussian would have 15.8 within 2.5 std


def _far_points_within(seed: int) -> int:
    """Of four points outside of the data, so many are within 2.5 std of the truth."""
    x = torch.linspace(-1, 1, 150)[:, None]
    y = torch.sin(4 * x[:, 0]) + 0.1 * torch.randn(150, generator=seeded(seed))
    torch.manual_seed(seed)
    net = nn.Sequential(nn.Linear(1, 32), nn.Tanh(), nn.Linear(32, 32), nn.Tanh(), nn.Linear(32, 1))
    fitted = bali.fit(net, (x, y), bali.likelihoods.Gaussian(), seed=seed, verbose=False)
    far = torch.tensor([[-2.0], [-1.5], [1.5], [2.0]])
    near, away = fitted.predict(x), fitted.predict(far)
    assert float(near.std.mean()) < 0.2
    assert float(away.std.min()) > 2 * float(near.std.mean())
    inside = (away.mean - torch.sin(4 * far)).abs() < 2.5 * away.std
    torch.testing.assert_close(fitted.module(x).detach(), near.mean, rtol=1e-4, atol=1e-4)
    drawn = torch.stack([module(x).detach() for module in fitted.sample(16)])
    assert float((drawn - near.mean).std()) < 0.3  # whole networks are drawn from a narrower one
    return int(inside.sum())
