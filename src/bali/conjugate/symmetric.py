"""Symmetric matrices by their structure: `Dense`, or `Diagonal` as the counts of an embedding's tokens and most priors are.

Whoever holds one need not ask which it is. As precisions R⁻¹ = C Cᵀ they are factored when that is first asked for, through
the gate of `linalg.cholesky`, and the factor is kept: distributions that share a precision share its factor. What only
densities, predictions and reports ask of a precision is in `mniw.py`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Self

import torch
from torch import Tensor

from bali.conjugate import linalg
from bali.conjugate.averages import averaged_into

#: More strips leave out little more, and every one is a copy.
_STRIPS, _LEAST_WIDTH = 8, 8


def _bounds(d: int) -> list[tuple[int, int]]:
    width = max(-(-d // _STRIPS), _LEAST_WIDTH)
    return [(low, min(low + width, d)) for low in range(0, d, width)]


def strips(matrix: Tensor) -> list[Tensor]:
    """Rows low..high of symmetric matrices (..., D, D), from column low on."""
    return [matrix[..., low:high, low:] for low, high in _bounds(matrix.shape[-1])]


def whole(like: Tensor, parts: Iterator[Tensor]) -> Tensor:
    """The matrices, of the shape of `like`, whose strips come next."""
    out = like.new_empty(like.shape)
    for low, high in _bounds(like.shape[-1]):
        part = next(parts)
        out[..., low:high, low:] = part
        out[..., high:, low:high] = part[..., high - low :].mT
    return out


@dataclass(frozen=True, eq=False)
class Symmetric(ABC):
    #: Dimensions of `values`; those before them are a batch.
    own_dims: ClassVar[int]

    values: Tensor
    name: str = "matrix"  # for messages about it
    repairs: linalg.Repairs | None = field(default=None, repr=False)
    # Factor and inverse, by name and type, once they were asked for.
    _kept: dict[tuple[str, torch.dtype], Tensor] = field(init=False, default_factory=dict, repr=False)

    @property
    def dtype(self) -> torch.dtype:
        return self.values.dtype

    @property
    def size(self) -> int:
        """D."""
        return self.values.shape[-1]

    def to(self, dtype: torch.dtype) -> Self:
        return self if dtype == self.dtype else replace(self, values=self.values.to(dtype))

    def scale_(self, factor: Tensor | float) -> None:
        """Multiply in place by a number, or by one for each of the batch."""
        self.values.mul_(factor[(..., *[None] * self.own_dims)] if isinstance(factor, Tensor) else factor)
        self._kept.clear()

    def pack(self) -> list[Tensor]:
        """The numbers that tell it, for a message; of a dense one little more than a half."""
        return [self.values] if self.own_dims == 1 else strips(self.values)

    def unpack(self, parts: Iterator[Tensor]) -> Self:
        """One of this shape whose packed numbers come next."""
        return replace(self, values=next(parts) if self.own_dims == 1 else whole(self.values, parts))

    @abstractmethod
    def diagonal(self) -> Tensor:
        """(..., D)"""

    @abstractmethod
    def dense(self) -> Tensor:
        """(..., D, D)"""

    @abstractmethod
    def plus(self, other: Symmetric) -> Symmetric:
        """The sum, in this one's type and under its name."""

    @abstractmethod
    def times(self, right: Tensor) -> Tensor:
        """A B, in B's own type."""

    # --- as a precision -----------------------------------------------------------------------------------------

    @abstractmethod
    def _factor(self) -> Tensor:
        """C: a lower triangle (..., D, D), or the column (..., D, 1) of a diagonal one."""

    @abstractmethod
    def _inverse(self) -> Tensor:
        """The `values` of A⁻¹."""

    @property
    def factor(self) -> Tensor:
        return self.factor_as(self.dtype)

    def factor_as(self, dtype: torch.dtype) -> Tensor:
        """The factor, computed in the matrix's own type and then rounded to another one."""
        return self._keep("factor", dtype, self._factor)

    def half_solve(self, right: Tensor) -> Tensor:
        """C⁻¹B, in B's own type: (C⁻¹B)ᵀ(C⁻¹B) = BᵀA⁻¹B is symmetric by construction."""
        return linalg.half_solve(self.factor_as(right.dtype), right)

    def transposed_half_solve(self, right: Tensor) -> Tensor:
        """C⁻ᵀB: turns standard normal columns into columns with covariance A⁻¹."""
        return linalg.transposed_half_solve(self.factor_as(right.dtype), right)

    def solve(self, right: Tensor) -> Tensor:
        """A⁻¹B, in B's own type."""
        if ("inverse", self.dtype) in self._kept:
            return type(self)(self._keep("inverse", right.dtype, self._inverse)).times(right)
        return self.transposed_half_solve(self.half_solve(right))

    def keep_inverse(self) -> None:
        """`solve` multiplies from then on: worth its cost where one matrix serves many solves. The factor is let go."""
        self._keep("inverse", self.dtype, self._inverse)
        self._kept.pop(("factor", self.dtype), None)

    def forget_factor(self) -> None:
        """Frees it; it is computed again if it is asked for."""
        self._kept.clear()

    def _keep(self, what: str, dtype: torch.dtype, compute: Callable[[], Tensor]) -> Tensor:
        """Computed once in the matrix's own type and rounded once to each other type."""
        if (what, dtype) not in self._kept:
            if (what, self.dtype) not in self._kept:
                self._kept[what, self.dtype] = compute()
            self._kept[what, dtype] = self._kept[what, self.dtype].to(dtype)
        return self._kept[what, dtype]

    def __getstate__(self) -> dict[str, Any]:
        return vars(self) | {"_kept": {}}


class Dense(Symmetric):
    """All entries, (..., D, D)."""

    own_dims = 2

    def diagonal(self) -> Tensor:
        return self.values.diagonal(dim1=-2, dim2=-1)

    def dense(self) -> Tensor:
        return self.values

    def plus(self, other: Symmetric) -> Dense:
        return replace(self, values=(self.values + other.dense()).to(self.dtype))

    def times(self, right: Tensor) -> Tensor:
        return self.values.to(right.dtype) @ right

    def _factor(self) -> Tensor:
        return linalg.cholesky(self.values, self.name, self.repairs)

    def _inverse(self) -> Tensor:
        return torch.cholesky_inverse(self.factor)


class Diagonal(Symmetric):
    """The diagonal only, (..., D)."""

    own_dims = 1

    def diagonal(self) -> Tensor:
        return self.values

    def dense(self) -> Tensor:
        return torch.diag_embed(self.values)

    def plus(self, other: Symmetric) -> Symmetric:
        if isinstance(other, Diagonal):
            return replace(self, values=(self.values + other.values).to(self.dtype))
        if self.values.dim() >= other.values.dim():  # one matrix for a batch of diagonals
            return Dense((self.dense() + other.values).to(self.dtype), self.name, self.repairs)
        total = other.values.to(self.dtype, copy=True)
        total.diagonal(dim1=-2, dim2=-1).add_(self.values)
        return Dense(total, self.name, self.repairs)

    def times(self, right: Tensor) -> Tensor:
        return self._keep("column", right.dtype, lambda: self.values[..., None]) * right

    def _factor(self) -> Tensor:
        if not bool((torch.isfinite(self.values) & (self.values > 0.0)).all()):
            raise linalg.NumericalError(
                f"{self.name} has a diagonal with entries that are not positive and finite. Check the inputs and sample "
                "weights, or lower effective_size."
            )
        return self.values.sqrt()[..., None]

    def _inverse(self) -> Tensor:
        return self.factor.squeeze(-1).square().reciprocal()


def average(old: Symmetric | None, new: Symmetric, rate: float) -> Symmetric:
    """One step of a moving average, written over the new value where it has room for it."""
    return new if old is None else replace(new, values=averaged_into(old.values, new.values, rate))


def as_symmetric(matrix: Symmetric | Tensor, name: str = "matrix", repairs: linalg.Repairs | None = None) -> Symmetric:
    """A plain tensor (..., D, D) as a dense matrix of this name."""
    return Dense(matrix, name, repairs) if isinstance(matrix, Tensor) else matrix
