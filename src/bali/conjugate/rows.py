"""The rows of an embedding: a single one in each, at the place of its token.

XᵀX of such rows is diagonal, the number of times each token was seen, and XᵀY are sums of rows of Y by token.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor


@dataclass(frozen=True)
class Tokens:
    """Rows (n, n_tokens), by the place of the one in each."""

    index: Tensor  # (n,)
    n_tokens: int
    dtype: torch.dtype

    @property
    def shape(self) -> tuple[int, int]:
        return len(self.index), self.n_tokens

    def to(self, dtype: torch.dtype) -> Tokens:
        return replace(self, dtype=dtype)

    def counts(self, root: Tensor | None) -> Tensor:
        """The diagonal of XᵀX, (n_tokens,); `root` (n,) are roots of the rows' weights."""
        weight = torch.ones(len(self.index), dtype=self.dtype, device=self.index.device) if root is None else root.square()
        return torch.zeros(self.n_tokens, dtype=self.dtype, device=self.index.device).index_add_(0, self.index, weight)

    def cross(self, y: Tensor, root: Tensor | None) -> Tensor:
        """XᵀY for rows y that have been multiplied by the roots already."""
        rows = y if root is None else y * root[:, None]
        return y.new_zeros(self.n_tokens, y.shape[1]).index_add_(0, self.index, rows)
