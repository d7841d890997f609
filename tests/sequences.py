"""Networks on sequences (n, positions, features), around one module each."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn


class Sequences(nn.Module):
    """All outputs of an attention or recurrent module; `first` says that it wants positions before examples."""

    def __init__(self, inner: nn.Module, *, first: bool = False) -> None:
        super().__init__()
        self.inner, self.first = inner, first

    def forward(self, x: Tensor) -> Tensor:
        x = x.transpose(0, 1) if self.first else x
        z = self.inner(x, x, x)[0] if isinstance(self.inner, nn.MultiheadAttention) else self.inner(x)[0]
        return z.transpose(0, 1) if self.first else z


class OverTime(nn.Module):
    """A cell applied to one position after the other."""

    def __init__(self, cell: nn.RNNCellBase) -> None:
        super().__init__()
        self.cell = cell

    def forward(self, x: Tensor) -> Tensor:
        state: Any = None
        outputs = []
        for at in x.unbind(1):
            state = self.cell(at, state)
            outputs.append(state if isinstance(state, Tensor) else state[0])
        return torch.stack(outputs, dim=1)


class Headed(nn.Module):
    """Any module on sequences, tanh, and a linear layer on all that comes out for an example."""

    def __init__(self, body: nn.Module, head: nn.Linear) -> None:
        super().__init__()
        self.body, self.head = body, head

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.tanh(self.body(x)).flatten(1))
