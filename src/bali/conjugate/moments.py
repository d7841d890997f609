"""Sufficient statistics of a linear regression.

Rows are observations: x is (..., n, D_in), y is (..., n, D_out). With `bias` a column of ones stands last in x;
it is never written out, only its products are.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from bali.conjugate import linalg
from bali.conjugate.gram import Rows, cross, gram, products
from bali.conjugate.symmetric import Dense, Symmetric, as_symmetric


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
