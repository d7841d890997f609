"""The package against a separate NumPy reading of the paper's Algorithm 1."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import bali
from support.algorithm1 import Algorithm1, Array, Layer
from support.networks import batches, data, inference, linears, mlp
from support.oracles import array
from support.posteriors import parts

# The natural form U₀ + YᵀY − MᵀR⁻¹M of the reading loses digits to cancellation; 20 steps stay far below this.
from support.tolerances import MANY_STEPS as TOLERANCE

STEPS = 20


@dataclass(frozen=True)
class Case:
    likelihood: str
    sizes: tuple[int, ...]
    activation: str
    bias: bool = True
    n: int = 60
    batch: int = 24
    n_eff: float = 35.0
    step_size: float = 0.4
    noise_floor: float = 0.02
    output_floor: float = 0.003
    prior_variance: float = 0.8


CASES = {
    "regression, 2 layers, tanh": Case("gaussian", (3, 6, 1), "tanh"),
    "regression, 3 layers, relu": Case("gaussian", (4, 7, 5, 1), "relu"),
    "two outputs, 2 layers, relu": Case("gaussian", (3, 6, 2), "relu", n_eff=200.0),
    "two outputs, 3 layers, tanh, no bias": Case("gaussian", (3, 5, 4, 2), "tanh", bias=False),
    "three classes, 2 layers, tanh": Case("categorical", (3, 6, 3), "tanh"),
    "three classes, 3 layers, relu": Case("categorical", (4, 6, 5, 3), "relu", n_eff=12.5),
    "yes or no, 2 layers, relu, no bias": Case("bernoulli", (3, 6, 1), "relu", bias=False),
    "two yes or no, 3 layers, tanh": Case("bernoulli", (3, 5, 4, 2), "tanh"),
    "whole data, N_eff = N": Case("gaussian", (3, 6, 1), "tanh", batch=60, n_eff=60.0),
}


def rate(step: int) -> float:
    """A β that decays, as in the paper's experiments."""
    return 0.3 if step <= 8 else 0.06 if step <= 14 else 0.012


def weights_of(linear: nn.Linear) -> Array:
    weight = linear.weight.detach().double().numpy().T
    return weight.copy() if linear.bias is None else np.vstack([weight, linear.bias.detach().double().numpy()])


def reading_of(module: nn.Module, case: Case, *, target_noise: bool) -> Algorithm1:
    modules = linears(module)
    floors = [case.noise_floor] * len(modules)
    if case.likelihood == "gaussian":
        floors[-1] = case.output_floor
    layers = [
        Layer(weights_of(linear), case.bias, case.prior_variance, floor, case.n_eff)
        for linear, floor in zip(modules, floors, strict=True)
    ]
    return Algorithm1(layers, case.activation, case.likelihood, case.step_size, target_noise)


def inference_of(module: nn.Module, case: Case, **settings: Any) -> bali.LayerwiseInference:
    return inference(
        module,
        case.likelihood,
        case.n,
        step_size=case.step_size,
        prior_variance=case.prior_variance,
        noise_floor=case.noise_floor,
        output_noise_floor=case.output_floor,
        effective_size=case.n_eff,
        **settings,
    )


def assert_follows(found: bali.LayerwiseInference, reading: Algorithm1) -> None:
    assert len(found.posteriors) == len(reading.layers)
    for (name, posterior), layer in zip(found.posteriors.items(), reading.layers, strict=True):
        for part, actual in parts(posterior).items():
            expected, message = getattr(layer, part), f"{part} of layer {name}"
            np.testing.assert_allclose(array(actual), expected, rtol=TOLERANCE, atol=TOLERANCE, err_msg=message)


each_case = pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
each_target = pytest.mark.parametrize("target_noise", [True, False], ids=["with E", "without E"])


@each_case
@each_target
def test_deterministic_mode_follows_the_paper(case: Case, target_noise: bool) -> None:
    module = mlp(case.sizes, case.activation, bias=case.bias)
    reading = reading_of(module, case, target_noise=target_noise)
    found = inference_of(module, case, reparam="none", target_noise=target_noise)
    x, y = data(case.likelihood, case.n, case.sizes[0], case.sizes[-1])
    for step, (bx, by) in enumerate(batches(x, y, case.batch, STEPS), 1):
        found.step(bx, by, rate(step))
        reading.step(bx.numpy(), by.numpy(), rate(step))
    assert_follows(found, reading)
    for linear, layer in zip(linears(module), reading.layers, strict=True):
        np.testing.assert_allclose(weights_of(linear), layer.mean, rtol=TOLERANCE, atol=TOLERANCE)


@each_case
@each_target
def test_weight_mode_follows_the_paper(case: Case, target_noise: bool) -> None:
    module = mlp(case.sizes, case.activation, bias=case.bias)
    reading = reading_of(module, case, target_noise=target_noise)
    found = inference_of(module, case, reparam="weight", target_noise=target_noise)
    x, y = data(case.likelihood, case.n, case.sizes[0], case.sizes[-1])
    for step, (bx, by) in enumerate(batches(x, y, case.batch, STEPS), 1):
        weights = [weights_of(linear) for linear in linears(module)]
        found.step(bx, by, rate(step))
        reading.step(bx.numpy(), by.numpy(), rate(step), weights)
        assert_follows(found, reading)
    for linear, layer in zip(linears(module), reading.layers, strict=True):
        assert not np.allclose(weights_of(linear), layer.mean)  # a sample, not the mean


@each_case
@each_target
def test_local_mode_follows_the_paper(case: Case, target_noise: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """The reading draws its own E = √(xᵀRx) A Σ^½ᵀ from the package's standard normal A."""
    normals: list[Array] = []
    real_randn = torch.randn

    def recording(*args: Any, **kwargs: Any) -> torch.Tensor:
        drawn = real_randn(*args, **kwargs)
        normals.append(drawn.numpy().copy())
        return drawn

    module = mlp(case.sizes, case.activation, bias=case.bias)
    reading = reading_of(module, case, target_noise=target_noise)
    found = inference_of(module, case, reparam="local", target_noise=target_noise)
    x, y = data(case.likelihood, case.n, case.sizes[0], case.sizes[-1])
    monkeypatch.setattr(torch, "randn", recording)
    for step, (bx, by) in enumerate(batches(x, y, case.batch, STEPS), 1):
        normals.clear()
        found.step(bx, by, rate(step))
        noise = local_noise(reading, bx.numpy(), normals) if step > 1 else None
        reading.step(bx.numpy(), by.numpy(), rate(step), noise=noise)
        assert_follows(found, reading)


def local_noise(reading: Algorithm1, rows: Array, normals: list[Array]) -> list[Array]:
    """E of each layer in turn: a layer's inputs depend on the noise of the layers before it."""
    noise = []
    activate = np.tanh if reading.activation == "tanh" else lambda z: np.maximum(z, 0.0)
    for layer, normal in zip(reading.layers, normals, strict=True):
        x = layer.inputs(rows)
        spread = np.sqrt(np.einsum("ni,ij,nj->n", x, np.linalg.inv(layer.precision), x))
        noise.append(spread[:, None] * (normal @ np.linalg.cholesky(layer.noise_mode()).T))
        rows = activate(x @ layer.mean + noise[-1])
    return noise


def test_first_rate_of_one_forgets_nothing_it_has_not_seen() -> None:
    """With β = 1 every step is the posterior of its own batch."""
    case = CASES["regression, 2 layers, tanh"]
    module = mlp(case.sizes, case.activation)
    reading = reading_of(module, case, target_noise=True)
    found = inference_of(module, case, reparam="none")
    x, y = data(case.likelihood, case.n, case.sizes[0], case.sizes[-1])
    for bx, by in batches(x, y, case.batch, 3):
        found.step(bx, by, ema_rate=1.0)
        reading.step(bx.numpy(), by.numpy(), 1.0)
    assert_follows(found, reading)
