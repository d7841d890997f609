"""Small networks and data sets for the tests of the inference, all in float64 unless a test says otherwise."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

import bali
from bali.likelihoods import Bernoulli, Categorical, Gaussian, Likelihood

ACTIVATIONS: dict[str, type[nn.Module]] = {"tanh": nn.Tanh, "relu": nn.ReLU}
LIKELIHOODS: dict[str, type[Likelihood]] = {"gaussian": Gaussian, "categorical": Categorical, "bernoulli": Bernoulli}


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def randn(*shape: int, seed: int, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(shape, generator=seeded(seed), dtype=dtype)


def mlp(sizes: Sequence[int], activation: str = "tanh", *, bias: bool = True, seed: int = 0) -> nn.Sequential:
    """Linear layers named 0, 2, 4, … with the activation between them, and weights of standard deviation 1/√D_in."""
    layers: list[nn.Module] = []
    for d_in, d_out in itertools.pairwise(sizes):
        layers += [nn.Linear(d_in, d_out, bias=bias), ACTIVATIONS[activation]()]
    module = nn.Sequential(*layers[:-1]).double()
    generator = seeded(seed)
    with torch.no_grad():
        for linear in linears(module):
            for parameter in linear.parameters():
                parameter.normal_(0.0, linear.in_features**-0.5, generator=generator)
    return module


def linears(module: nn.Module) -> list[nn.Linear]:
    return [m for m in module.modules() if isinstance(m, nn.Linear)]


def data(likelihood: str, n: int, d_in: int, d_out: int, *, seed: int = 1) -> tuple[Tensor, Tensor]:
    """Rows x and targets that depend on them."""
    x = randn(n, d_in, seed=seed)
    signal = torch.sin(x @ randn(d_in, d_out, seed=seed + 1)) + 0.1 * randn(n, d_out, seed=seed + 2)
    if likelihood == "categorical":
        return x, signal.argmax(-1)
    if likelihood == "bernoulli":
        return x, (signal > 0).double()
    return x, signal


def batches(x: Tensor, y: Tensor, size: int, steps: int, *, seed: int = 5) -> list[tuple[Tensor, Tensor]]:
    generator = seeded(seed)
    chosen = [torch.randperm(len(x), generator=generator)[:size] for _ in range(steps)]
    return [(x[index], y[index]) for index in chosen]


def inference(module: nn.Module, likelihood: str = "gaussian", n_data: int = 60, **settings: Any) -> bali.LayerwiseInference:
    """An inference with a seeded generator."""
    settings.setdefault("generator", seeded(7))
    return bali.LayerwiseInference(module, LIKELIHOODS[likelihood](), n_data, **settings)


def parameters(module: nn.Module) -> list[Tensor]:
    return [p.detach().clone() for p in module.parameters()]


def assert_same_posteriors(
    first: bali.LayerwiseInference, second: bali.LayerwiseInference, *, rtol: float, atol: float
) -> None:
    """Mean, precision, scale and dof of every layer agree; with tolerances of zero, bit for bit."""
    assert list(first.posteriors) == list(second.posteriors)
    for name, one in first.posteriors.items():
        two = second.posteriors[name]
        for part in ("mean", "precision", "scale"):
            left, right = getattr(one, part), getattr(two, part)
            message = f"{part} of layer {name}: largest difference {float((left - right).abs().max()):g}"
            torch.testing.assert_close(left, right, rtol=rtol, atol=atol, msg=message)
        assert one.dof == two.dof
