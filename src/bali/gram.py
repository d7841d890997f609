"""Products of rows with rows: XᵀX, XᵀY and YᵀY, each at the least cost.

A Gram matrix is symmetric, so of a wide one only the strips right of the diagonal are computed and then mirrored. The
column of ones that stands for a bias is written out only where rows are narrow: a copy of a few columns is cheaper there
than the extra calls, and it is not where they are wide.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

#: From this width on, copies of the rows cost more than separate calls for the column of ones.
_WIDE = 128
#: Narrower strips than this do not use the processor well; more of them than this save nothing more.
_STRIP_WIDTH, _MOST_STRIPS = 128, 4


def gram(x: Tensor) -> Tensor:
    """XᵀX for rows x (..., n, D), exactly symmetric where it is computed in strips."""
    d = x.shape[-1]
    n_strips = min(d // _STRIP_WIDTH, _MOST_STRIPS)
    if n_strips < 2:
        return x.mT @ x
    out = x.new_empty((*x.shape[:-2], d, d))
    _fill_gram(out, x, n_strips)
    return out


def _fill_gram(out: Tensor, x: Tensor, n_strips: int) -> None:
    d = x.shape[-1]
    width = -(-d // max(n_strips, 1))
    for low in range(0, d, width):
        high = min(low + width, d)
        torch.matmul(x[..., low:high].mT, x[..., low:], out=out[..., low:high, low:])
        out[..., high:, low:high] = out[..., low:high, high:].mT


def _cross(x: Tensor, y: Tensor) -> Tensor:
    """XᵀY, by the transposed product where that one has the longer rows."""
    return x.mT @ y if 4 * y.shape[-1] > x.shape[-1] else (y.mT @ x).mT


def with_ones(x: Tensor, root: Tensor | None) -> Tensor:
    """(x, 1), each row times its root (..., n), if there is one."""
    if root is None:
        return functional.pad(x, (0, 1), value=1.0)
    if x.dim() < root.dim() + 1:
        x = x.expand(*root.shape, x.shape[-1])
    return functional.pad(x, (0, 1), value=1.0) * root[..., None]


def products(x: Tensor, y: Tensor, *, bias: bool, root: Tensor | None, with_xx: bool = True) -> tuple[Tensor | None, Tensor]:
    """XᵀX (unless it is not wanted) and XᵀY of rows x (..., n, D_in), with a column of ones if `bias`.

    `root` (..., n) are roots of the rows' weights, which y has been multiplied by already.
    """
    d = x.shape[-1]
    if not bias or d < _WIDE:
        rows = with_ones(x, root) if bias else (x if root is None else x * root[..., None])
        return (gram(rows) if with_xx else None), _cross(rows, y)
    rows = x if root is None else x * root[..., None]
    xy = _cross(rows, y)
    bias_row = (y.sum(-2, keepdim=True) if root is None else root.unsqueeze(-2) @ y).expand(*xy.shape[:-2], 1, -1)
    xy = torch.cat([xy, bias_row], dim=-2)
    if not with_xx:
        return None, xy
    xx = rows.new_empty((*rows.shape[:-2], d + 1, d + 1))
    _fill_gram(xx[..., :d, :d], rows, min(d // _STRIP_WIDTH, _MOST_STRIPS))
    xx[..., :d, d] = rows.sum(-2) if root is None else (root.unsqueeze(-2) @ rows).squeeze(-2)
    xx[..., d, :d] = xx[..., :d, d]
    xx[..., d, d] = x.shape[-2] if root is None else root.square().sum(-1)
    return xx, xy
