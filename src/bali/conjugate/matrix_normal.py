"""The matrix-normal around given weights that a curvature A ⊗ S and a prior of variance ω² leave.

    W ~ MN(M, R, Σ),    R⁻¹ = A + λ I,   Σ⁻¹ = S + I / (ω² λ),    λ = share · tr(A) / D_x

Along inputs that no example ever had, where A is nothing, weights vary as the prior says, up to what S adds; along those
that examples had, `share` decides how much of the prior's precision is put on the side of the outputs: with a small one the
posterior is narrow there, with a larger one it is that of the curvature alone (Laplace's). A = U diag(a) Uᵀ and
S = V diag(s) Vᵀ are kept by their eigenvectors, so that another share costs nothing.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from bali.conjugate.linalg import NumericalError
from bali.conjugate.symmetric import Diagonal, Symmetric

#: Of the posterior before held-out examples have told better.
DEFAULT_SHARE = 0.01
_TINY = 1e-30


@dataclass(frozen=True)
class MatrixNormal:
    mean: Tensor  # M, (..., D_x, D_y)
    input_basis: Tensor | None  # U, (..., D_x, D_x); None is the identity
    input_values: Tensor  # a, (..., D_x)
    output_basis: Tensor  # V, (..., D_y, D_y)
    output_values: Tensor  # s, (..., D_y)
    prior_variance: float  # ω²
    share: float = DEFAULT_SHARE

    @classmethod
    def of(cls, mean: Tensor, inputs: Symmetric, outputs: Tensor, prior_variance: float, name: str) -> MatrixNormal:
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

    def with_share(self, share: float) -> MatrixNormal:
        return replace(self, share=share)

    def to(self, dtype: torch.dtype) -> MatrixNormal:
        basis = None if self.input_basis is None else self.input_basis.to(dtype)
        outputs = self.output_basis.to(dtype), self.output_values.to(dtype)
        return MatrixNormal(
            self.mean.to(dtype), basis, self.input_values.to(dtype), *outputs, self.prior_variance, self.share
        )

    def spreads(self) -> tuple[Tensor, Tensor]:
        """Standard deviations of R (..., D_x) and of Σ (..., D_y) along their eigenvectors."""
        damping = self.share * self.input_values.mean(-1, keepdim=True) + _TINY
        of_inputs = (self.input_values + damping).rsqrt()
        return of_inputs, (self.output_values + 1.0 / (self.prior_variance * damping)).rsqrt()

    def weights_from(self, normal: Tensor) -> Tensor:
        """A sample for standard normal numbers (..., D_x, D_y), in their own type."""
        of_inputs, of_outputs = (spread.to(normal.dtype) for spread in self.spreads())
        basis = of_outputs.unsqueeze(-1) * self.output_basis.to(normal.dtype).mT
        scaled = (normal * of_inputs.unsqueeze(-1)) @ basis
        if self.input_basis is not None:
            scaled = self.input_basis.to(normal.dtype) @ scaled
        return scaled + self.mean.to(normal.dtype)

    def output_noise(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """For rows x (..., n, D_x), ones included: s = (xᵀRx)^½, (..., n), and T with TᵀT = Σ. Outputs are xᵀM + s · εT."""
        of_inputs, of_outputs = (spread.to(x.dtype) for spread in self.spreads())
        rotated = x if self.input_basis is None else x @ self.input_basis.to(x.dtype)
        root = of_outputs.unsqueeze(-1) * self.output_basis.to(x.dtype).mT
        return (rotated * of_inputs.unsqueeze(-2)).square().sum(-1).sqrt(), root

    def output_covariance(self, x: Tensor) -> Tensor:
        """xᵀRx · Σ, of the outputs xᵀW for rows x (..., n, D_x), ones included: (..., n, D_y, D_y)."""
        of_inputs, of_outputs = self.spreads()
        rotated = x if self.input_basis is None else x @ self.input_basis
        variance = (rotated * of_inputs.unsqueeze(-2)).square().sum(-1)
        root = self.output_basis * of_outputs.unsqueeze(-2)
        return variance[..., None, None] * (root @ root.mT).unsqueeze(-3)
