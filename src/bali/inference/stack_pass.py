"""Forward and backward pass of a stack of perceptrons: K members of one shape, every tensor with a leading dimension of K.

Passes are written out: a network of this kind takes a handful of products, and a module, hooks and autograd would take
longer than these. `tests/inference/test_stack_pass.py` holds both passes against autograd.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from bali.layers.modules import Back, bent

#: Below so many columns of the outputs, products of a batch are three to eight times faster the other way round.
_FEW_COLUMNS = 16


@dataclass(frozen=True)
class Forward:
    """A forward pass, and what the way back needs of it."""

    outputs: Tensor  # (K, n, D)
    inputs: list[Tensor]  # of each layer, (K, n, D), without the ones
    back: list[Back]  # through each activation


@dataclass(frozen=True)
class StackPass:
    """What a batch says about every layer."""

    inputs: list[Tensor]  # of each layer, (K, n, D), without the ones
    gradients: list[Tensor]  # at each layer's outputs, times the rows' shares
    share: Tensor  # (K, n), of each row in its member's weight of the batch
    total: Tensor  # (K,), that weight


def forward(means: Sequence[Tensor], activation: nn.Module, x: Tensor) -> Forward:
    """With weights (K, D_x, D_y) of each layer, the bias in the last row; x is (n, D), or (K, n, D) for rows of the members'
    own."""
    h = x.expand(len(means[0]), *x.shape[-2:])
    inputs, back = [h], []
    for mean in means[:-1]:
        h, way = bent(activation, _affine(h, mean))
        inputs.append(h)
        back.append(way)
    return Forward(_affine(h, means[-1]), inputs, back)


def backward(means: Sequence[Tensor], passed: Forward, gradient: Tensor) -> list[Tensor]:
    """Gradients at the outputs of every layer from the one at the last."""
    found = [gradient]
    for mean, back in zip(reversed(means[1:]), reversed(passed.back), strict=True):
        weights, g = mean[:, :-1].mT, found[-1]  # of a single column, a plain product of all pairs is the faster one
        found.append(back(g * weights if g.shape[-1] == 1 else torch.bmm(g, weights)))
    return found[::-1]


def cross(h: Tensor, g: Tensor) -> Tensor:
    """(h, 1)ᵀg, (K, D + 1, P)."""
    return torch.cat([product(h.mT, g), g.sum(1, keepdim=True)], 1)


def product(left: Tensor, right: Tensor) -> Tensor:
    """Of two batches of matrices."""
    return torch.bmm(right.mT, left.mT).mT if right.shape[-1] < _FEW_COLUMNS else torch.bmm(left, right)


def _affine(h: Tensor, mean: Tensor) -> Tensor:
    """(h, 1) M"""
    if mean.shape[-1] < _FEW_COLUMNS:
        return torch.baddbmm(mean[:, -1:].mT, mean[:, :-1].mT, h.mT).mT
    return torch.baddbmm(mean[:, -1:], h, mean[:, :-1])
