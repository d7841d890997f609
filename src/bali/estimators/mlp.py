"""Stacked multilayer perceptrons, and the priors that go with them."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from bali.layers.linear import StackedLinear
from bali.layers.modules import ACTIVATIONS, BentUnlessLinear


def stacked_mlp(members: int, sizes: Sequence[int], activation: str, linear: Sequence[bool] | None = None) -> nn.Sequential:
    """`members` perceptrons with layer sizes (inputs, hidden ..., outputs), weights not yet drawn.

    Those that are `linear` have no activation: they are linear models with the layers and the priors of the others.
    """
    layers: list[nn.Module] = []
    for n_in, n_out in itertools.pairwise(sizes):
        between = BentUnlessLinear(activation, linear) if linear and any(linear) else ACTIVATIONS[activation]()
        layers += [StackedLinear(members, n_in, n_out), between]
    return nn.Sequential(*layers[:-1])


def unit_variances(sizes: Sequence[int], first: float | None = None) -> dict[str, float]:
    """By layer name, the weight variance that stands for 1 in the paper, whose layers divide features by √(D + 1).

    The paper does not scale the inputs of the first layer, which is `first=1.0`. By default they are scaled so that the
    layer's outputs have the spread that nine unit-variance columns and a bias would give.
    """
    if first is None:
        first = 10.0 / (sizes[0] + 1)
    names = [str(2 * i) for i in range(len(sizes) - 1)]
    return {names[0]: first} | {name: 1.0 / (n + 1) for name, n in zip(names[1:], sizes[1:-1], strict=True)}


@torch.no_grad()
def draw_initial_weights(
    module: nn.Module, variances: dict[str, float], generator: torch.Generator, of_member: Tensor | None = None
) -> None:
    """Initial weights and biases N(0, variance) for each layer, times a factor (K,) of each stacked member's."""
    for name, variance in variances.items():
        for parameter in module.get_submodule(name).parameters():
            parameter.normal_(0.0, variance**0.5, generator=generator)
            if of_member is not None:
                parameter.mul_(of_member.sqrt().reshape(-1, *[1] * (parameter.dim() - 1)))
