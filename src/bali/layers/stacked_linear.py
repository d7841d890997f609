"""K linear layers side by side, as one module."""

from __future__ import annotations

import torch
from torch import Tensor, nn


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
