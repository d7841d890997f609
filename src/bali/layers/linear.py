"""Linear modules as a weight matrix, and K of them side by side: a leading dimension of K everywhere."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from bali.layers.layer import Layer


class StackedLinear(nn.Module):
    """K linear layers of one shape: (K, n, D_in), or (n, D_in) for all of them, to (K, n, D_out)."""

    def __init__(self, members: int, in_features: int, out_features: int, bias: bool = True) -> None:
        super().__init__()
        self.members, self.in_features, self.out_features = members, in_features, out_features
        self.weight = nn.Parameter(torch.empty(members, out_features, in_features))
        self.bias = nn.Parameter(torch.empty(members, out_features)) if bias else None
        bound = in_features**-0.5
        with torch.no_grad():
            for parameter in self.parameters():
                parameter.uniform_(-bound, bound)

    def forward(self, x: Tensor) -> Tensor:
        if x.dim() not in (2, 3) or (x.dim() == 3 and len(x) != self.members):
            raise ValueError(f"stacked layers take (n, D) or ({self.members}, n, D) inputs, got shape {tuple(x.shape)}")
        if self.bias is None:
            return x @ self.weight.mT
        return torch.baddbmm(self.bias[:, None, :], x.expand(self.members, *x.shape[-2:]), self.weight.mT)

    def extra_repr(self) -> str:
        return f"members={self.members}, in_features={self.in_features}, out_features={self.out_features}"


class LinearLayer(Layer):
    """A linear module as a weight matrix. `members` is K for stacked layers, None otherwise."""

    takes_rows = True

    def __init__(self, name: str, module: nn.Linear | StackedLinear) -> None:
        self.name, self._module = name, module
        self.members = module.members if isinstance(module, StackedLinear) else None
        self.has_bias = module.bias is not None
        self.in_features, self.out_features = module.in_features, module.out_features

    @property
    def module(self) -> nn.Module:
        return self._module

    @property
    def weight(self) -> Tensor:
        return self._module.weight

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
