"""Small networks and data sets for the tests of the inference, all in float64 unless a test says otherwise."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

import bali
from bali.inference.network import Network
from bali.predictive.likelihoods import Bernoulli, Categorical, Gaussian, Likelihood

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


def inference(
    module: nn.Module,
    likelihood: str = "gaussian",
    n_data: int = 60,
    *,
    max_block: int | None = None,
    about_weights: bool = False,
    input_moments: Tensor | None = None,
    **settings: Any,
) -> bali.LayerwiseInference:
    """An inference with a seeded generator, ready for its first step; `max_block` cuts layers that are not wide at all."""
    settings.setdefault("generator", seeded(7))
    run = bali.LayerwiseInference(module, LIKELIHOODS[likelihood](), n_data, **settings)
    if max_block is not None:
        network = Network(module, max_block=max_block, has_true_targets=run.setup.likelihood.has_true_targets)
        run.setup = replace(run.setup, network=network)
        run.state = replace(run.state, layers=run.setup.initial_layers())
    if about_weights:
        run.center_prior_on_weights()
    if input_moments is not None:
        run.use_input_moments(input_moments)
    return run


def parameters(module: nn.Module) -> list[Tensor]:
    return [p.detach().clone() for p in module.parameters()]
