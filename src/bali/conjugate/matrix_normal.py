"""Gaussians around given weights that a curvature A ⊗ S and a prior of variance ω² leave, and that curvature itself.

A = U diag(a) Uᵀ and S = V diag(s) Vᵀ are kept by their eigenvectors, along which weights are independent; a posterior says
with which standard deviation, for a width that can be changed at no cost:

    MatrixNormal   R⁻¹ = A + λ I,   Σ⁻¹ = S + I / (ω² λ),   λ = width · tr(A) / D_x      W ~ MN(M, R, Σ)
    SumNormal      (A ⊗ S + I / (width · ω²))⁻¹                                          the sum of both, as it is

The first serves samples of weights. Along inputs that no example ever had, weights vary as the prior says, up to what S
adds; along those that examples had, the width decides how much of the prior's precision is put on the side of the outputs:
with a small one the posterior is narrow there, with a larger one it is that of the curvature alone (Laplace's). The second
serves linearised predictions, in which the doubts of layers add up and do not compound; its width is that of the prior.

`Kronecker` is the curvature as a prior for the next data. A sum of such precisions is none. `plus` gives the one with the
same partial traces, Σ A_t tr(S_t) and Σ S_t tr(A_t), which is the sum itself where the terms have a factor in common.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Any, Self

import torch
from torch import Tensor

from bali.conjugate.linalg import NumericalError
from bali.conjugate.symmetric import Diagonal, Symmetric, as_symmetric

_TINY = 1e-30


@dataclass(frozen=True)
class CurvaturePosterior(ABC):
    mean: Tensor  # M, (..., D_x, D_y)
    input_basis: Tensor | None  # U, (..., D_x, D_x); None is the identity
    input_values: Tensor  # a, (..., D_x)
    output_basis: Tensor  # V, (..., D_y, D_y)
    output_values: Tensor  # s, (..., D_y)
    prior_variance: float  # ω²
    width: float = 0.01

    @classmethod
    def of(cls, mean: Tensor, inputs: Symmetric, outputs: Tensor, prior_variance: float, name: str) -> Self:
        """With A and S given; eigenvalues that rounding made negative are zero."""
        if not bool(torch.isfinite(inputs.values).all() and torch.isfinite(outputs).all()):
            raise NumericalError(f"{name} has a curvature that is not finite; look for extreme values in x")
        if isinstance(inputs, Diagonal):
            input_values, input_basis = inputs.values, None
        else:
            input_values, input_basis = torch.linalg.eigh(inputs.dense())
        output_values, output_basis = torch.linalg.eigh(outputs)
        values = input_values.clamp_min(0.0), output_values.clamp_min(0.0)
        return cls(mean, input_basis, values[0], output_basis, values[1], prior_variance)

    @property
    @abstractmethod
    def deviations(self) -> Tensor:
        """Standard deviations along pairs of eigenvectors, (..., D_x, D_y)."""

    def with_width(self, width: float) -> Self:
        return replace(self, width=width)

    def to(self, where: torch.device | torch.dtype) -> Self:
        """On another device, or in another type of numbers."""
        values: dict[str, Any] = {f.name: getattr(self, f.name) for f in fields(self)}
        values |= {name: value.to(where) for name, value in values.items() if isinstance(value, Tensor)}
        return type(self)(**values)

    def departure_from(self, normal: Tensor) -> Tensor:
        """A sample of W − M for standard normal numbers (..., D_x, D_y), in their own type."""
        scaled = (normal * self.deviations.to(normal.dtype)) @ self.output_basis.to(normal.dtype).mT
        return scaled if self.input_basis is None else self.input_basis.to(normal.dtype) @ scaled

    def weights_from(self, normal: Tensor) -> Tensor:
        """A sample of W."""
        return self.mean.to(normal.dtype) + self.departure_from(normal)

    def output_covariance(self, x: Tensor) -> Tensor:
        """Of the outputs xᵀW for rows x (..., n, D_x), ones included: (..., n, D_y, D_y)."""
        rotated = x if self.input_basis is None else x @ self.input_basis
        variances = rotated.square() @ self.deviations.square()  # along the eigenvectors of S, (..., n, D_y)
        basis = self.output_basis.unsqueeze(-3)
        return (basis * variances.unsqueeze(-2)) @ basis.mT


@dataclass(frozen=True)
class MatrixNormal(CurvaturePosterior):
    def spreads(self) -> tuple[Tensor, Tensor]:
        """Standard deviations of R (..., D_x) and of Σ (..., D_y) along their eigenvectors."""
        damping = self.width * self.input_values.mean(-1, keepdim=True) + _TINY
        of_inputs = (self.input_values + damping).rsqrt()
        return of_inputs, (self.output_values + 1.0 / (self.prior_variance * damping)).rsqrt()

    @cached_property
    def deviations(self) -> Tensor:
        of_inputs, of_outputs = self.spreads()
        return of_inputs.unsqueeze(-1) * of_outputs.unsqueeze(-2)

    def output_noise(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """For rows x (..., n, D_x), ones included: s = (xᵀRx)^½, (..., n), and T with TᵀT = Σ. Outputs are xᵀM + s · εT."""
        of_inputs, of_outputs = (spread.to(x.dtype) for spread in self.spreads())
        rotated = x if self.input_basis is None else x @ self.input_basis.to(x.dtype)
        root = of_outputs.unsqueeze(-1) * self.output_basis.to(x.dtype).mT
        return (rotated * of_inputs.unsqueeze(-2)).square().sum(-1).sqrt(), root


@dataclass(frozen=True)
class SumNormal(CurvaturePosterior):
    @cached_property
    def deviations(self) -> Tensor:
        curvature = self.input_values.unsqueeze(-1) * self.output_values.unsqueeze(-2)
        return (curvature + 1.0 / (self.width * self.prior_variance)).rsqrt()


# --- what data have said, for the next data ---------------------------------------------------------------------------


@dataclass(frozen=True)
class Kronecker:
    inputs: Symmetric  # A, (..., D_x, D_x)
    outputs: Tensor  # S, (..., D_y, D_y)

    @classmethod
    def of(cls, posterior: CurvaturePosterior, name: str) -> Kronecker:
        """The curvature that a posterior was made of, without its prior."""
        u, a, v, s = posterior.input_basis, posterior.input_values, posterior.output_basis, posterior.output_values
        inputs = Diagonal(a, name) if u is None else as_symmetric((u * a.unsqueeze(-2)) @ u.mT, name, None)
        return cls(inputs, (v * s.unsqueeze(-2)) @ v.mT)

    def times(self, weights: Tensor) -> Tensor:
        """A W S, in W's own type."""
        return self.inputs.times(weights) @ self.outputs.to(weights.dtype)

    def half_square(self, weights: Tensor) -> float:
        """tr(Wᵀ A W S) / 2, what a prior of this precision takes from the log joint at a departure W."""
        return 0.5 * float((weights * self.times(weights)).sum(dtype=torch.float64))

    def scaled(self, factor: float) -> Kronecker:
        return replace(self, inputs=replace(self.inputs, values=self.inputs.values * factor))

    def to(self, dtype: torch.dtype) -> Kronecker:
        return Kronecker(self.inputs.to(dtype), self.outputs.to(dtype))

    def plus(self, other: Kronecker) -> Kronecker:
        """The precision whose partial traces are those of the sum."""
        mine, its = (k.inputs.diagonal().sum(-1) for k in (self, other))
        own, their = (_trace(k.outputs) for k in (self, other))
        total = (mine * own + its * their).clamp_min(torch.finfo(mine.dtype).tiny)
        outputs = (mine / total)[..., None, None] * self.outputs + (its / total)[..., None, None] * other.outputs
        return Kronecker(_weighted(self.inputs, own).plus(_weighted(other.inputs, their)), outputs)


def _trace(matrix: Tensor) -> Tensor:
    return matrix.diagonal(dim1=-2, dim2=-1).sum(-1)


def _weighted(matrix: Symmetric, weight: Tensor) -> Symmetric:
    found = replace(matrix, values=matrix.values.clone())
    found.scale_(weight)
    return found
