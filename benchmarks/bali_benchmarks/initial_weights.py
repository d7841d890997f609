"""Initial weights with the paper's scaling."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import nn


def unit_variances(sizes: Sequence[int], first: float) -> dict[str, float]:
    """By layer name, the weight variance that stands for 1 in the paper, whose layers divide features by √(D + 1).

    The paper does not scale the inputs of the first layer, which is `first=1.0`.
    """
    variances = [first, *(1.0 / (n + 1) for n in sizes[1:-1])]
    return {str(2 * i): variance for i, variance in enumerate(variances)}


@torch.no_grad()
def draw_initial_weights(module: nn.Module, variances: Mapping[str, float], generator: torch.Generator) -> None:
    """Weights and biases N(0, variance) for each layer."""
    for name, variance in variances.items():
        for parameter in module.get_submodule(name).parameters():
            parameter.normal_(0.0, variance**0.5, generator=generator)
