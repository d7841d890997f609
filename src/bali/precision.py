"""What a distribution does with the precision R⁻¹ of its rows: factor, inverse and products, computed once and kept."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property

import torch
from torch import Tensor

from bali import linalg


class WithPrecision:
    """The part of `MNIW` that is about its precision."""

    precision: Tensor
    name: str
    repairs: linalg.Repairs | None
    # The precision's factor and inverse, by name and type, once they were asked for.
    _of_precision: dict[tuple[str, torch.dtype], Tensor]

    @property
    def precision_factor(self) -> Tensor:
        """C with R⁻¹ = C Cᵀ."""
        return self.precision_factor_as(self.precision.dtype)

    def precision_factor_as(self, dtype: torch.dtype) -> Tensor:
        """The factor, computed in the precision's own type and then rounded to another one."""
        return self._kept("factor", dtype, lambda: linalg.cholesky(self.precision, f"{self.name}: precision", self.repairs))

    def covariance_as(self, dtype: torch.dtype) -> Tensor:
        """R itself, which `precision_solve` uses from then on: worth its cost where one precision serves many solves."""
        return self._kept("inverse", dtype, lambda: linalg.inverse(self.precision_factor))

    def precision_solve(self, right: Tensor) -> Tensor:
        """R B, in B's own type."""
        if ("inverse", self.precision.dtype) in self._of_precision:
            return linalg.times(self.covariance_as(right.dtype), right)
        factor = self.precision_factor_as(right.dtype)
        return linalg.transposed_half_solve(factor, linalg.half_solve(factor, right))

    def forget_precision_factor(self) -> None:
        """Frees the precision's factor, which is computed again if it is asked for."""
        self._of_precision.clear()

    def adopt_precision_factor(self, factor: Tensor) -> None:
        """Take over a factor that was computed elsewhere."""
        self._of_precision["factor", factor.dtype] = factor

    def _kept(self, what: str, dtype: torch.dtype, compute: Callable[[], Tensor]) -> Tensor:
        """Something of the precision, computed once in its own type and rounded once to each other type."""
        kept, own = self._of_precision, self.precision.dtype
        if (what, dtype) not in kept:
            if (what, own) not in kept:
                kept[what, own] = compute()
            kept[what, dtype] = kept[what, own].to(dtype)
        return kept[what, dtype]

    @cached_property
    def least_precision(self) -> float:
        """The smallest diagonal entry of the precision."""
        return float(linalg.diagonal(self.precision).min())

    @cached_property
    def _precision_diagonal(self) -> Tensor | None:
        """The precision's diagonal, where that is all of it, as in most priors."""
        diagonal = linalg.diagonal(self.precision)
        if linalg.is_column(self.precision):
            return diagonal
        return diagonal.clone() if torch.equal(torch.diag_embed(diagonal), self.precision) else None

    def precision_times(self, right: Tensor) -> Tensor:
        """R⁻¹B, in B's own type."""
        diagonal = self._precision_diagonal
        if diagonal is None:
            return self.precision.to(right.dtype) @ right
        return self._kept("diagonal", right.dtype, lambda: diagonal[..., None]) * right

    def precision_plus(self, xx: Tensor) -> Tensor:
        """R⁻¹ + XᵀX, in the precision's own type."""
        diagonal = self._precision_diagonal
        is_column = linalg.is_column(self.precision)
        if diagonal is None or is_column or diagonal.dim() >= xx.dim():  # or one XᵀX for a batch of them
            return self.precision + xx
        total = xx.to(self.precision.dtype, copy=True)
        total.diagonal(dim1=-2, dim2=-1).add_(diagonal)
        return total
