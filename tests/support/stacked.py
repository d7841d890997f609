"""Stacks of perceptrons that are given, not trained."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from bali.conjugate.symmetric import Dense
from bali.inference.stack_update import StackLayer, forward
from bali.layers.modules import ACTIVATIONS
from bali.training.table_posterior import StackPosterior


def with_ones(x: Tensor) -> Tensor:
    return torch.cat([x, x.new_ones(*x.shape[:-1], 1)], -1)


def stack(
    means: Sequence[Tensor], x: Tensor, activation: str = "tanh", variance: float = 2.0, curvature: float = 1.0
) -> StackPosterior:
    """Members with these weights (K, D_x, D_y) of each layer, whose curvature is that of rows x with unit gradients."""
    k = len(means[0])
    inputs = forward(means, ACTIVATIONS[activation](), x).inputs
    layers = []
    for place, (mean, h) in enumerate(zip(means, inputs, strict=True)):
        gram = with_ones(h).mT @ with_ones(h) / len(x)
        outputs = curvature * torch.eye(mean.shape[-1], dtype=mean.dtype).repeat(k, 1, 1)
        layers.append(StackLayer(mean, variance, f"layer {place}", inputs=Dense(gram), gradients=outputs))
    return StackPosterior.around(layers, torch.full((k,), float(len(x)), dtype=torch.float64), activation)
