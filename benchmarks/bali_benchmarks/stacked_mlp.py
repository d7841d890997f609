"""Stacked multilayer perceptrons."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from torch import nn

from bali.layers.linear import StackedLinear
from bali.layers.modules import ACTIVATIONS


def stacked_mlp(members: int, sizes: Sequence[int], activation: str) -> nn.Sequential:
    """`members` perceptrons with layer sizes (inputs, hidden ..., outputs)."""
    layers: list[nn.Module] = []
    for n_in, n_out in itertools.pairwise(sizes):
        layers += [StackedLinear(members, n_in, n_out), ACTIVATIONS[activation]()]
    return nn.Sequential(*layers[:-1])
