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


class Letters(nn.Module):
    """Numbers (n, positions) as tokens, then all kinds of layers that sequences have."""

    def __init__(self, positions: int, n_outputs: int, n_tokens: int = 7) -> None:
        super().__init__()
        self.n_tokens = n_tokens
        self.embedding, self.attention = nn.Embedding(n_tokens, 4), nn.MultiheadAttention(4, 2, batch_first=True)
        self.recurrent, self.head = nn.GRU(4, 3, batch_first=True), nn.Linear(3 * positions, n_outputs)

    def forward(self, x: Tensor) -> Tensor:
        rows = self.embedding((2.0 * x).floor().long() % self.n_tokens)
        rows = rows + self.attention(rows, rows, rows, need_weights=False)[0]
        return self.head(self.recurrent(rows)[0].flatten(1))
