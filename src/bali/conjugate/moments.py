"""Sufficient statistics of a linear regression: XᵀX, XᵀY and YᵀY, each at the least cost.

Rows are observations: x is (..., n, D_in), y is (..., n, D_out). With `bias` a column of ones stands last in x. A Gram
matrix is symmetric, so of a wide one only the strips right of the diagonal are computed and then mirrored. The column of
ones is written out only where rows are narrow: a copy of a few columns is cheaper there than the extra calls, and it is not
where they are wide. Where it is, for many members, columns of zeros fill the rows up to a width that the processor likes: a
product of 51 columns takes a quarter longer than one of 52.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from bali.conjugate import linalg
from bali.conjugate.rows import Patches, Tokens
from bali.conjugate.symmetric import Dense, Symmetric, as_symmetric

#: The inputs of a layer, as the rows of a regression; those that are no plain tensors know their products themselves.
Rows = Tensor | Patches | Tokens

#: From this width on, copies of the rows cost more than separate calls for the column of ones.
_WIDE = 128
#: Narrower strips than this do not use the processor well; more of them than this save nothing more.
_STRIP_WIDTH, _MOST_STRIPS = 64, 8
#: Widths of narrow rows are made multiples of this.
_LIKED = 4


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


def with_ones(x: Tensor, root: Tensor | None, zeros: int = 0) -> Tensor:
    """(x, 1), each row times its root (..., n), if there is one, and then so many columns of zeros."""
    tail = torch.eye(1, 1 + zeros, dtype=x.dtype, device=x.device)
    if root is None:
        return torch.cat([x, tail.expand(*x.shape[:-1], 1 + zeros)], dim=-1)
    column = root[..., None]
    rows = x * column
    return torch.cat([rows, (column * tail).expand(*rows.shape[:-1], 1 + zeros)], dim=-1)


def _filled(x: Tensor, root: Tensor | None, *, many: bool) -> Tensor:
    """`with_ones` and as many zeros as the width should have, if there are many products to be made."""
    return with_ones(x, root, -(x.shape[-1] + 1) % _LIKED if many else 0)


def input_gram(x: Rows, *, bias: bool, root: Tensor | None) -> Symmetric:
    """XᵀX of rows x (..., n, D_in), with a column of ones if `bias`; `root` (..., n) are roots of the rows' weights."""
    if not isinstance(x, Tensor):
        return x.input_gram(bias=bias, root=root)
    d = x.shape[-1]
    if bias and d < _WIDE:
        return Dense(gram(_filled(x, root, many=x.dim() > 2))[..., : d + 1, : d + 1])
    rows = x if root is None else x * root[..., None]
    if not bias:
        return Dense(gram(rows))
    xx = rows.new_empty((*rows.shape[:-2], d + 1, d + 1))
    _fill_gram(xx[..., :d, :d], rows, min(d // _STRIP_WIDTH, _MOST_STRIPS))
    xx[..., :d, d] = rows.sum(-2) if root is None else (root.unsqueeze(-2) @ rows).squeeze(-2)
    xx[..., d, :d] = xx[..., :d, d]
    xx[..., d, d] = x.shape[-2] if root is None else root.square().sum(-1)
    return Dense(xx)


def cross(x: Rows, y: Tensor, *, bias: bool, root: Tensor | None) -> Tensor:
    """XᵀY likewise, for rows y that have been multiplied by the roots already."""
    if not isinstance(x, Tensor):
        return x.cross(y, bias=bias, root=root)
    if bias and x.shape[-1] < _WIDE:
        return _cross(_filled(x, root, many=y.dim() > 2), y)[..., : x.shape[-1] + 1, :]
    xy = _cross(x if root is None else x * root[..., None], y)
    if not bias:
        return xy
    bias_row = (y.sum(-2, keepdim=True) if root is None else root.unsqueeze(-2) @ y).expand(*xy.shape[:-2], 1, -1)
    return torch.cat([xy, bias_row], dim=-2)


def products(x: Rows, y: Tensor, *, bias: bool, root: Tensor | None) -> tuple[Symmetric, Tensor]:
    """`input_gram` and `cross`, sharing what they can."""
    n = x.shape[-1] + 1
    if bias and n <= _WIDE and isinstance(x, Tensor):
        rows = _filled(x, root, many=y.dim() > 2)
        xx, xy = gram(rows), _cross(rows, y)
        return (Dense(xx), xy) if rows.shape[-1] == n else (Dense(xx[..., :n, :n]), xy[..., :n, :])
    return input_gram(x, bias=bias, root=root), cross(x, y, bias=bias, root=root)


@dataclass(frozen=True, init=False)
class Moments:
    """XᵀX, XᵀY, YᵀY and the number of rows: all that a Bayesian linear regression needs to know of its data.

    Moments of disjoint data add. The paper's averages hold moments scaled to N_eff rows.
    """

    xx: Symmetric | None  # of D_x inputs; None where nobody needs it
    xy: Tensor  # (..., D_x, D_y)
    yy: Tensor  # (..., D_y, D_y)
    n: Tensor | float

    def __init__(self, xx: Symmetric | Tensor | None, xy: Tensor, yy: Tensor, n: Tensor | float) -> None:
        vars(self).update(xx=None if xx is None else as_symmetric(xx), xy=xy, yy=yy, n=n)

    @classmethod
    def of(cls, x: Tensor, y: Tensor, *, bias: bool, weight: Tensor | None = None) -> Moments:
        """Moments of rows x (..., n, D_in) and y (..., n, D_y); `weight` (..., n) counts a row that many times."""
        root = None if weight is None else weight.sqrt()
        return cls.of_rooted(x, y if root is None else y * root[..., None], bias=bias, root=root)

    @classmethod
    def of_rooted(cls, x: Rows, y: Tensor, *, bias: bool, root: Tensor | None, with_xx: bool = True) -> Moments:
        """`of` for rows y that the root of the weights has been multiplied into already."""
        xx, xy = products(x, y, bias=bias, root=root) if with_xx else (None, cross(x, y, bias=bias, root=root))
        return cls(xx, xy, gram(y), x.shape[-2] if root is None else root.square().sum(-1))

    def __add__(self, other: Moments) -> Moments:
        xx = None if self.xx is None or other.xx is None else self.xx.plus(other.xx)
        return Moments(xx, self.xy + other.xy, self.yy + other.yy, self.n + other.n)

    def to(self, dtype: torch.dtype) -> Moments:
        if dtype == self.xy.dtype:
            return self
        return Moments(None if self.xx is None else self.xx.to(dtype), self.xy.to(dtype), self.yy.to(dtype), self.n)

    def rescale_(self, n: float, target_scale: Tensor | None = None) -> Moments:
        """The moments that n rows like these would have, with targets Y diag(target_scale); these are overwritten.

        target_scale is (..., D_y).
        """
        factor = n / self.n
        if self.xx is not None:
            self.xx.scale_(factor)
        each = factor[..., None, None] if isinstance(factor, Tensor) else factor
        row = each if target_scale is None else target_scale.unsqueeze(-2) * each
        self.xy.mul_(row)
        self.yy.mul_(row)
        if target_scale is not None:
            self.yy.mul_(target_scale.unsqueeze(-1))
        return Moments(self.xx, self.xy, self.yy, n)

    def shifted(self, weights: Tensor) -> Moments:
        """Moments of (X, Y + X W), exactly and without the rows: W is (..., D_x, D_y)."""
        assert self.xx is not None
        if isinstance(self.xx, Dense):
            xy = linalg.plus_product(self.xy, self.xx.values, weights)
        else:
            xy = torch.addcmul(self.xy, self.xx.diagonal()[..., None], weights)
        # (Y + XW)ᵀ(Y + XW) = YᵀY + Wᵀ(XᵀY + XᵀXW) + (XᵀY)ᵀW
        yy = linalg.plus_product(linalg.plus_product(self.yy, weights.mT, xy), self.xy.mT, weights)
        return Moments(self.xx, xy, yy, self.n)
