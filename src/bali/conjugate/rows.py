"""The rows of an embedding: a single one in each, at the place of its token.

XᵀX of such rows is diagonal, the number of times each token was seen, and XᵀY are sums of rows of Y by token.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from bali.conjugate.symmetric import Diagonal


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

    def input_gram(self, *, bias: bool, root: Tensor | None) -> Diagonal:
        """XᵀX; `root` (n,) are roots of the rows' weights. Embeddings have no bias."""
        assert not bias
        weight = torch.ones(len(self.index), dtype=self.dtype, device=self.index.device) if root is None else root.square()
        counts = torch.zeros(self.n_tokens, dtype=self.dtype, device=self.index.device)
        return Diagonal(counts.index_add_(0, self.index, weight))

    def cross(self, y: Tensor, *, bias: bool, root: Tensor | None) -> Tensor:
        """XᵀY for rows y that have been multiplied by the roots already."""
        assert not bias
        rows = y if root is None else y * root[:, None]
        return y.new_zeros(self.n_tokens, y.shape[1]).index_add_(0, self.index, rows)
