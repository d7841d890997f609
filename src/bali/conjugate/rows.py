"""Rows that are not written out, and their products: patches of a convolution, tokens of an embedding.

Patches overlap: of a 5 × 5 kernel, every pixel is in up to 25 of them. All that XᵀX needs are products of pixels with
pixels, summed over examples. An entry belongs to two places (i, j) and (i', j') of the kernel and is a sum over positions
(p, q),

    XᵀX[(c, i, j), (c', i', j')] = Σ_pq K[(c, p + i, q + j), (c', p + i', q + j')],    K = Σ_n image_n image_nᵀ

so that each line of K's pixels is multiplied with itself and the lines below it that the kernel reaches, in products of a
shape that processors like. XᵀY likewise is a sum of products of lines of the image with lines of the outputs.

The row of a token has a single one, at its place. XᵀX of such rows is diagonal, the number of times each token was seen, and
XᵀY are sums of rows of Y by token.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from bali.conjugate.symmetric import Dense, Diagonal

#: Lines of pixels take more operations than patches where the image is wide, and save the copies: up to so many times.
_WORTH = 2.0


@dataclass(frozen=True)
class Patches:
    """Rows (n · positions, channels · kernel) of a convolution over images, padded already; ordered as if written out.

    With a stride s and a dilation d, p + i above is s p + d i.
    """

    images: Tensor  # (n, channels, height, width)
    kernel: tuple[int, int]
    stride: tuple[int, int]
    dilation: tuple[int, int]

    @property
    def dtype(self) -> torch.dtype:
        return self.images.dtype

    def to(self, dtype: torch.dtype) -> Patches:
        return replace(self, images=self.images.to(dtype))

    @property
    def positions(self) -> tuple[int, int]:
        height, width = (
            (size - d * (k - 1) - 1) // s + 1
            for size, k, s, d in zip(self.images.shape[2:], self.kernel, self.stride, self.dilation, strict=True)
        )
        return height, width

    @property
    def shape(self) -> tuple[int, int]:
        (p, q), (kh, kw) = self.positions, self.kernel
        return len(self.images) * p * q, self.images.shape[1] * kh * kw

    def is_worth_it(self, n_outputs: int) -> bool:
        """Whether products of lines are expected to be quicker than those of rows."""
        _, c, height, width = self.images.shape
        (p, q), (kh, kw) = self.positions, self.kernel
        by_lines = height * c * width * kh * c * width + p * kh * c * width * q * n_outputs
        by_rows = p * q * c * kh * kw * (c * kh * kw + n_outputs)
        return by_lines <= _WORTH * by_rows

    def _lines(self, root: Tensor | None) -> Tensor:
        """(n, height · channels · width), each example times its root, which is given for every row."""
        images = self.images.transpose(1, 2)
        if root is not None:
            images = images * root.reshape(len(images), -1)[:, :1, None, None]
        return images.reshape(len(images), -1)

    def input_gram(self, *, bias: bool, root: Tensor | None) -> Dense:
        """XᵀX, with a column of ones in X if `bias`; `root` are roots of the rows' weights, alike within an example."""
        _, c, _, _ = self.images.shape
        (kh, kw), d = self.kernel, self.shape[1]
        lines = self._lines(root)
        xx = lines.new_empty(d + bias, d + bias)
        inner = lines.new_empty(c, kh, kw, c, kh, kw)
        for lag, sums in enumerate(self._lagged(lines)):
            for i in range(kh - lag):
                inner[:, i, :, :, i + lag] = sums[i]
                inner[:, i + lag, :, :, i] = sums[i].permute(2, 3, 0, 1)
        xx[:d, :d] = inner.reshape(d, d)
        if bias:
            ones = lines.sum(0) if root is None else root.reshape(len(lines), -1)[:, 0] @ lines
            xx[:d, d] = xx[d, :d] = self._window_sums(ones)
            xx[d, d] = self.shape[0] if root is None else root.square().sum()
        return Dense(xx)

    def _lagged(self, lines: Tensor) -> list[Tensor]:
        """For kernel lines i and i + lag, the entries of XᵀX, (kh − lag, C, kw, C, kw), for each lag."""
        _, c, _, width = self.images.shape
        (kh, kw), (s, t), (d, e), (p, q) = self.kernel, self.stride, self.dilation, self.positions
        line, reach = c * width, d * (kh - 1) + 1  # of pixels; of lines
        used = s * (p - 1) + reach  # lines that any patch has
        products = lines.new_zeros(used, line, reach * line)
        for top in range(used):
            end = min(top + reach, used)
            own, below = lines[:, top * line : (top + 1) * line], lines[:, top * line : end * line]
            torch.mm(own.T, below, out=products[top, :, : (end - top) * line])
        top, left = line * reach * line, reach * line  # strides of products, seen as (top, C, W, reach, C, W)
        strides = (d * top, width * left, e * left, width, e, s * top, t * (left + 1))
        return [
            products.as_strided((kh - lag, c, kw, c, kw, p, q), strides, lag * d * line).sum((-1, -2)) for lag in range(kh)
        ]

    def _window_sums(self, line_sums: Tensor) -> Tensor:
        """Sums over positions for every place of the kernel, (channels · kernel,), from those over examples."""
        _, c, _, width = self.images.shape
        (kh, kw), (s, t), (d, e), (p, q) = self.kernel, self.stride, self.dilation, self.positions
        line = c * width
        windows = line_sums.as_strided((c, kh, kw, p, q), (width, d * line, e, s * line, t))
        return windows.sum((-1, -2)).flatten()

    def cross(self, y: Tensor, *, bias: bool, root: Tensor | None) -> Tensor:
        """XᵀY for rows y (n · positions, D_out) that have been multiplied by the roots already."""
        n, c, _, width = self.images.shape
        (kh, kw), (s, t), (d, e), (p, q) = self.kernel, self.stride, self.dilation, self.positions
        lines, line, reach = self._lines(root), c * width, d * (kh - 1) + 1
        outputs, out = y.reshape(n, -1), y.shape[1]
        products = lines.new_zeros(reach * line, q * out)
        for position in range(p):
            seen = lines[:, s * position * line : (s * position + reach) * line]
            products.addmm_(seen.T, outputs[:, position * q * out : (position + 1) * q * out])
        row = q * out
        windows = products.as_strided((c, kh, kw, out, q), (width * row, d * line * row, e * row, 1, t * row + out))
        xy = windows.sum(-1).reshape(-1, out)
        if not bias:
            return xy
        bias_row = y.sum(0, keepdim=True) if root is None else root[None] @ y
        return torch.cat([xy, bias_row])


# --- tokens -----------------------------------------------------------------------------------------------------------


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
