"""Linear modules as a weight matrix; of K stacked ones, with a leading dimension of K everywhere."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from bali.layers.layer import Layer
from bali.layers.modules import StackedLinear as StackedLinear


class LinearLayer(Layer):
    """A linear module as a weight matrix. `members` is K for stacked layers, None otherwise."""

    takes_rows = True

    def __init__(self, name: str, module: nn.Linear | StackedLinear) -> None:
        self.name = name
        self.module = self._module = module
        self.members = module.members if isinstance(module, StackedLinear) else None
        self.has_bias = module.bias is not None
        self.in_features, self.out_features = module.in_features, module.out_features

    def input_rows(self, x: Tensor) -> Tensor:
        """Middle dimensions are folded into the rows, members stay in front."""
        if self.members is not None:
            return x  # (K, n, D), or (n, D) shared by the members
        return x if x.dim() == 2 else x.reshape(-1, x.shape[-1])

    def output_rows(self, z: Tensor) -> Tensor:
        return self.input_rows(z)

    def from_rows(self, rows: Tensor, like: Tensor) -> Tensor:
        return rows.reshape(like.shape)

    def weights(self) -> Tensor:
        weight = self._module.weight.detach().mT
        if self._module.bias is None:
            return weight.clone()
        return torch.cat([weight, self._module.bias.detach().unsqueeze(-2)], dim=-2)

    def assign(self, weights: Tensor) -> None:
        d = self.in_features
        self._module.weight.detach().copy_(weights[..., :d, :].mT)
        if self._module.bias is not None:
            self._module.bias.detach().copy_(weights[..., d, :])
