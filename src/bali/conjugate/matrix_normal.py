"""Gaussians around given weights that a curvature A ⊗ S and a prior of variance ω² leave.

A = U diag(a) Uᵀ and S = V diag(s) Vᵀ are kept by their eigenvectors, along which weights are independent; a posterior says
with which standard deviation, for a width that can be changed at no cost:

    MatrixNormal   R⁻¹ = A + λ I,   Σ⁻¹ = S + I / (ω² λ),   λ = width · tr(A) / D_x      W ~ MN(M, R, Σ)
    SumNormal      (A ⊗ S + I / (width · ω²))⁻¹                                          the sum of both, as it is

The first serves samples of weights. Along inputs that no example ever had, weights vary as the prior says, up to what S
adds; along those that examples had, the width decides how much of the prior's precision is put on the side of the outputs:
with a small one the posterior is narrow there, with a larger one it is that of the curvature alone (Laplace's). The second
serves linearised predictions, in which the doubts of layers add up and do not compound; its width is that of the prior.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Any, Self

import torch
from torch import Tensor

from bali.conjugate.linalg import NumericalError
from bali.conjugate.symmetric import Diagonal, Symmetric

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
