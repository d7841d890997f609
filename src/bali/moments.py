"""Sufficient statistics of a linear regression, and their debiased moving average.

Rows are observations: x is (..., n, D_in), y is (..., n, D_out). With `bias` a column of ones stands last in x;
it is never written out, only its products are.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from bali import linalg
from bali.gram import gram, products
from bali.patches import Patches


@dataclass(frozen=True)
class Moments:
    """XᵀX, XᵀY, YᵀY and the number of rows: all that a Bayesian linear regression needs to know of its data.

    Moments of disjoint data add. The paper's averages hold moments scaled to N_eff rows.
    """

    xx: Tensor  # (..., D_x, D_x), or the column (..., D_x, 1) of a diagonal
    xy: Tensor  # (..., D_x, D_y)
    yy: Tensor  # (..., D_y, D_y)
    n: Tensor | float

    @classmethod
    def of(cls, x: Tensor, y: Tensor, *, bias: bool, weight: Tensor | None = None) -> Moments:
        """Moments of rows x (..., n, D_in) and y (..., n, D_y); `weight` (..., n) counts a row that many times."""
        root = None if weight is None else weight.sqrt()
        return cls.of_rooted(x, y if root is None else y * root[..., None], bias=bias, root=root)

    @classmethod
    def of_rooted(cls, x: Tensor | Patches, y: Tensor, *, bias: bool, root: Tensor | None) -> Moments:
        """`of` for rows y that the root of the weights has been multiplied into already."""
        xx, xy = products(x, y, bias=bias, root=root)
        return cls(xx, xy, gram(y), x.shape[-2] if root is None else root.square().sum(-1))

    def __add__(self, other: Moments) -> Moments:
        return Moments(self.xx + other.xx, self.xy + other.xy, self.yy + other.yy, self.n + other.n)

    def without_xx(self) -> Moments:
        """A 0 stands for XᵀX, for those that need it no more."""
        return Moments(self.xy.new_zeros(()), self.xy, self.yy, self.n)

    def to(self, dtype: torch.dtype) -> Moments:
        if dtype == self.xy.dtype:
            return self
        return Moments(self.xx.to(dtype), self.xy.to(dtype), self.yy.to(dtype), self.n)

    def rescale_(self, n: float, target_scale: Tensor | None = None) -> Moments:
        """The moments that n rows like these would have, with targets Y diag(target_scale); these are overwritten.

        target_scale is (..., D_y). A 0 without dimensions stands for an XᵀX or YᵀY that nobody needs.
        """
        factor = n / self.n
        f = factor[..., None, None] if isinstance(factor, Tensor) else factor
        row = f if target_scale is None else target_scale.unsqueeze(-2) * f
        if not _is_one(f) and self.xx.dim() > 0:
            self.xx.mul_(f)
        if not _is_one(row):
            self.xy.mul_(row)
        if not _is_one(row) and self.yy.dim() > 0:
            self.yy.mul_(row)
        if target_scale is not None and self.yy.dim() > 0:
            self.yy.mul_(target_scale.unsqueeze(-1))
        return Moments(self.xx, self.xy, self.yy, n)

    def shifted(self, weights: Tensor) -> Moments:
        """Moments of (X, Y + X W), exactly and without the rows: W is (..., D_x, D_y)."""
        if linalg.is_column(self.xx):
            xy = torch.addcmul(self.xy, self.xx, weights)
        else:
            xy = linalg.plus_product(self.xy, self.xx, weights)
        # (Y + XW)ᵀ(Y + XW) = YᵀY + Wᵀ(XᵀY + XᵀXW) + (XᵀY)ᵀW
        yy = linalg.plus_product(linalg.plus_product(self.yy, weights.mT, xy), self.xy.mT, weights)
        return Moments(self.xx, xy, yy, self.n)


def _is_one(factor: Tensor | float) -> bool:
    return not isinstance(factor, Tensor) and factor == 1.0


@dataclass
class DebiasedRate:
    """The weight of the newest value in a debiased exponential moving average.

    Ψ_t = (1−β_t)Ψ_{t−1} + β_t v_t with Ψ_0 = 0 has total weight b_t = 1 − Π(1−β_s). The debiased average Ψ_t/b_t is
    itself a moving average with rate β_t/b_t, so neither Ψ nor the division need to be kept: `advance` returns that
    rate and every average of one inference is updated by `average.lerp(new, rate)`. The first rate is 1.

    The average is a weighted mean over all rows seen, whose weights sum to 1. Where a value is the mean of `rows` rows,
    each has the value's weight over `rows`; the sum of their squares follows a recursion of its own and tells how many
    rows of equal weight the average is worth.
    """

    weight: float = 0.0  # b_t
    squares: float = 0.0  # Σ of the squared weights of all rows in the debiased average

    def advance(self, rate: float, rows: float = 1.0) -> float:
        if not 0.0 < rate <= 1.0:
            raise ValueError(f"ema_rate must be in (0, 1], got {rate}")
        self.weight += rate * (1.0 - self.weight)  # 1 − (1−b)(1−β), exact at the first step
        debiased = rate / self.weight
        self.squares = (1.0 - debiased) ** 2 * self.squares + debiased**2 / rows
        return debiased

    @property
    def effective_rows(self) -> float:
        """(Σw)²/Σw²: as many equally weighted, independent rows give a mean of the same variance (Kish)."""
        return 1.0 / self.squares if self.squares else 0.0


def averaged(old: Tensor | None, new: Tensor, rate: float) -> Tensor:
    """One step of a moving average whose first value is the first observation."""
    return new if old is None or rate == 1.0 else old.lerp(new, rate)


def averaged_into(old: Tensor | None, new: Tensor, rate: float) -> Tensor:
    """`averaged`, written over the new value where it has room for it."""
    if old is None or rate == 1.0 or old.shape != new.shape:
        return averaged(old, new, rate)
    return new.lerp_(old, 1.0 - rate)
