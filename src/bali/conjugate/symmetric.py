"""Symmetric matrices by their structure: `Dense`, or `Diagonal` as the counts of an embedding's tokens and most priors are.

Both have the same few methods, so that moments, updates, posteriors, prediction and files need not ask which one they hold.
As precisions R⁻¹ = C Cᵀ they are factored when that is first asked for, through the gate of `linalg.cholesky`, and the
factor is kept: distributions that share a precision share its factor. Leading dimensions are a batch.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any, Self

import torch
from torch import Tensor

from bali.conjugate import linalg, triangles
from bali.conjugate.averages import averaged_into
from bali.conjugate.rows import Tokens


@dataclass(frozen=True, eq=False)
class Symmetric(ABC):
    values: Tensor
    name: str = "matrix"  # for messages about it
    repairs: linalg.Repairs | None = field(default=None, repr=False)
    # Factor and inverse, by name and type, once they were asked for.
    _kept: dict[tuple[str, torch.dtype], Tensor] = field(init=False, default_factory=dict, repr=False)

    @property
    def dtype(self) -> torch.dtype:
        return self.values.dtype

    def to(self, dtype: torch.dtype) -> Self:
        return self if dtype == self.dtype else replace(self, values=self.values.to(dtype))

    @property
    @abstractmethod
    def size(self) -> int:
        """D."""

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

    @abstractmethod
    def scale_(self, factor: Tensor | float) -> None:
        """Multiply in place by a number, or by one for each of the batch."""

    @abstractmethod
    def eigenvalues(self) -> Tensor:
        """(..., D), in any order."""

    @abstractmethod
    def pack(self) -> list[Tensor]:
        """The numbers that tell it, for a message; of a dense one little more than a half."""

    @abstractmethod
    def unpack(self, parts: Iterator[Tensor]) -> Self:
        """One of this shape whose packed numbers come next."""

    # --- as a precision -----------------------------------------------------------------------------------------

    @abstractmethod
    def _factor(self) -> Tensor: ...

    @abstractmethod
    def _inverse(self, factor: Tensor) -> Tensor: ...

    @abstractmethod
    def half_solve(self, right: Tensor) -> Tensor:
        """C⁻¹B, in B's own type: (C⁻¹B)ᵀ(C⁻¹B) = BᵀA⁻¹B is symmetric by construction."""

    @abstractmethod
    def transposed_half_solve(self, right: Tensor) -> Tensor:
        """C⁻ᵀB: turns standard normal columns into columns with covariance A⁻¹."""

    @abstractmethod
    def transposed_factor_times(self, right: Tensor) -> Tensor:
        """CᵀB."""

    @abstractmethod
    def row_variance(self, x: Tensor | Tokens) -> Tensor:
        """xᵀA⁻¹x for each row of x (..., n, D), which may leave out a trailing column of ones."""

    @property
    def factor(self) -> Tensor:
        """C: a lower triangle (..., D, D), or the column (..., D, 1) of a diagonal one."""
        return self.factor_as(self.dtype)

    def factor_as(self, dtype: torch.dtype) -> Tensor:
        """The factor, computed in the matrix's own type and then rounded to another one."""
        return self._keep("factor", dtype, self._factor)

    def keep_inverse(self) -> None:
        """`solve` multiplies from then on: worth its cost where one matrix serves many solves."""
        self._keep("inverse", self.dtype, lambda: self._inverse(self.factor))

    def solve(self, right: Tensor) -> Tensor:
        """A⁻¹B, in B's own type."""
        if ("inverse", self.dtype) in self._kept:
            return type(self)(self._keep("inverse", right.dtype, lambda: self._inverse(self.factor))).times(right)
        return self.transposed_half_solve(self.half_solve(right))

    def logdet(self) -> Tensor:
        return 2.0 * self.factor_diagonal().log().sum(-1)

    @abstractmethod
    def factor_diagonal(self) -> Tensor:
        """Of C, (..., D)."""

    def ratio_trace(self, other: Symmetric) -> Tensor:
        """tr(A⁻¹B) as a sum of squares, for another precision B."""
        return self.half_solve(other.dense_factor()).square().sum((-2, -1))

    @abstractmethod
    def dense_factor(self) -> Tensor: ...

    def forget_factor(self) -> None:
        """Frees it; it is computed again if it is asked for."""
        self._kept.clear()

    def adopt_factor(self, factor: Tensor) -> None:
        """Take over a factor that was computed elsewhere."""
        self._kept["factor", factor.dtype] = factor

    def _keep(self, what: str, dtype: torch.dtype, compute: Callable[[], Tensor]) -> Tensor:
        """Computed once in the matrix's own type and rounded once to each other type."""
        if (what, dtype) not in self._kept:
            if (what, self.dtype) not in self._kept:
                self._kept[what, self.dtype] = compute()
            self._kept[what, dtype] = self._kept[what, self.dtype].to(dtype)
        return self._kept[what, dtype]

    def __getstate__(self) -> dict[str, Any]:
        return vars(self) | {"_kept": {}}


@dataclass(frozen=True, eq=False)
class Dense(Symmetric):
    """All entries, (..., D, D)."""

    @property
    def size(self) -> int:
        return self.values.shape[-1]

    def diagonal(self) -> Tensor:
        return self.values.diagonal(dim1=-2, dim2=-1)

    def dense(self) -> Tensor:
        return self.values

    def plus(self, other: Symmetric) -> Dense:
        return replace(self, values=(self.values + other.dense()).to(self.dtype))

    def times(self, right: Tensor) -> Tensor:
        return self.values.to(right.dtype) @ right

    def scale_(self, factor: Tensor | float) -> None:
        self.values.mul_(factor[..., None, None] if isinstance(factor, Tensor) else factor)
        self._kept.clear()

    def eigenvalues(self) -> Tensor:
        return torch.linalg.eigvalsh(self.values)

    def pack(self) -> list[Tensor]:
        return triangles.strips(self.values)

    def unpack(self, parts: Iterator[Tensor]) -> Dense:
        return replace(self, values=triangles.whole(self.values, parts))

    def _factor(self) -> Tensor:
        return linalg.cholesky(self.values, self.name, self.repairs)

    def _inverse(self, factor: Tensor) -> Tensor:
        return torch.cholesky_inverse(factor)

    def half_solve(self, right: Tensor) -> Tensor:
        return linalg.half_solve(self.factor_as(right.dtype), right)

    def transposed_half_solve(self, right: Tensor) -> Tensor:
        return linalg.transposed_half_solve(self.factor_as(right.dtype), right)

    def transposed_factor_times(self, right: Tensor) -> Tensor:
        return self.factor_as(right.dtype).mT @ right

    def factor_diagonal(self) -> Tensor:
        return self.factor.diagonal(dim1=-2, dim2=-1)

    def dense_factor(self) -> Tensor:
        return self.factor

    def row_variance(self, x: Tensor | Tokens) -> Tensor:
        assert isinstance(x, Tensor)
        d, factor = x.shape[-1], self.factor_as(x.dtype)
        if d == self.size:
            return linalg.half_solve(factor, x.mT).square().sum(-2)
        half = linalg.half_solve(factor[..., :d, :d], x.mT)
        last = factor[..., d:, :]
        bottom = (1.0 - last[..., :d] @ half) / last[..., d:]
        return half.square().sum(-2) + bottom.square().squeeze(-2)


@dataclass(frozen=True, eq=False)
class Diagonal(Symmetric):
    """The diagonal only, (..., D)."""

    @classmethod
    def of_variance(
        cls, variance: Tensor | float, size: int, dtype: torch.dtype, device: torch.device | None = None, **named: Any
    ) -> Diagonal:
        """1 / variance in every entry; a tensor of variances gives a batch."""
        inverse = 1.0 / torch.as_tensor(variance, dtype=dtype, device=device)
        return cls(inverse[..., None].expand(*inverse.shape, size).clone(), **named)

    @property
    def size(self) -> int:
        return self.values.shape[-1]

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

    def scale_(self, factor: Tensor | float) -> None:
        self.values.mul_(factor[..., None] if isinstance(factor, Tensor) else factor)
        self._kept.clear()

    def eigenvalues(self) -> Tensor:
        return self.values

    def pack(self) -> list[Tensor]:
        return [self.values]

    def unpack(self, parts: Iterator[Tensor]) -> Diagonal:
        return replace(self, values=next(parts))

    def _factor(self) -> Tensor:
        if not bool((torch.isfinite(self.values) & (self.values > 0.0)).all()):
            raise linalg.NumericalError(
                f"{self.name} has a diagonal with entries that are not positive and finite. Check the inputs and sample "
                "weights, or lower effective_size."
            )
        return self.values.sqrt()[..., None]

    def _inverse(self, factor: Tensor) -> Tensor:
        return factor.squeeze(-1).square().reciprocal()

    def half_solve(self, right: Tensor) -> Tensor:
        return right / self.factor_as(right.dtype)

    def transposed_half_solve(self, right: Tensor) -> Tensor:
        return right / self.factor_as(right.dtype)

    def transposed_factor_times(self, right: Tensor) -> Tensor:
        return self.factor_as(right.dtype) * right

    def factor_diagonal(self) -> Tensor:
        return self.factor.squeeze(-1)

    def dense_factor(self) -> Tensor:
        return torch.diag_embed(self.factor_diagonal())

    def row_variance(self, x: Tensor | Tokens) -> Tensor:
        if isinstance(x, Tokens):
            return self.factor_as(x.dtype)[..., x.index, 0].square().reciprocal()
        d, entries = x.shape[-1], self.factor_as(x.dtype).squeeze(-1).square()
        variance = (x.square() / entries[..., None, :d]).sum(-1)
        return variance if d == self.size else variance + 1.0 / entries[..., None, d]


def average(old: Symmetric | None, new: Symmetric, rate: float) -> Symmetric:
    """One step of a moving average, written over the new value where it has room for it."""
    return new if old is None else replace(new, values=averaged_into(old.values, new.values, rate))


def as_symmetric(matrix: Symmetric | Tensor, name: str, repairs: linalg.Repairs | None) -> Symmetric:
    """A plain tensor (..., D, D) as a dense matrix of this name."""
    return Dense(matrix, name, repairs) if isinstance(matrix, Tensor) else matrix
