"""Densities, evidence and divergence of the matrix-normal inverse-Wishart distribution; no step needs them.

Nor does a step need what they, predictions and reports ask of a precision R⁻¹ = C Cᵀ, which is here too.
"""

from __future__ import annotations

import math
from typing import NamedTuple, Self

import torch
from torch import Tensor

from bali.conjugate import linalg
from bali.conjugate.mniw_parameters import MNIWParameters
from bali.conjugate.rows import Tokens
from bali.conjugate.symmetric import Diagonal, Symmetric


def dense_factor(precision: Symmetric) -> Tensor:
    """C, (..., D, D)."""
    factor = precision.factor
    return torch.diag_embed(factor.squeeze(-1)) if isinstance(precision, Diagonal) else factor


def transposed_factor_times(precision: Symmetric, right: Tensor) -> Tensor:
    """CᵀB, in B's own type."""
    factor = precision.factor_as(right.dtype)
    return factor * right if isinstance(precision, Diagonal) else factor.mT @ right


def logdet(precision: Symmetric) -> Tensor:
    """log |R⁻¹|"""
    factor = precision.factor
    return 2.0 * factor.squeeze(-1).log().sum(-1) if isinstance(precision, Diagonal) else linalg.logdet(factor)


def eigenvalues(precision: Symmetric) -> Tensor:
    """(..., D), in any order."""
    return precision.values if isinstance(precision, Diagonal) else torch.linalg.eigvalsh(precision.values)


def ratio_trace(precision: Symmetric, other: Symmetric) -> Tensor:
    """tr(A⁻¹B) as a sum of squares, for precisions A and B."""
    return precision.half_solve(dense_factor(other)).square().sum((-2, -1))


def row_variance(precision: Symmetric, x: Tensor | Tokens) -> Tensor:
    """xᵀRx for each row of x (..., n, D), which may leave out a trailing column of ones."""
    factor = precision.factor_as(x.dtype)
    if isinstance(x, Tokens):
        assert isinstance(precision, Diagonal)
        return factor[..., x.index, 0].square().reciprocal()
    d = x.shape[-1]
    has_ones = d == precision.size
    if isinstance(precision, Diagonal):
        entries = factor.squeeze(-1).square()
        variance = (x.square() / entries[..., None, :d]).sum(-1)
        return variance if has_ones else variance + 1.0 / entries[..., None, d]
    if has_ones:
        return linalg.half_solve(factor, x.mT).square().sum(-2)
    half = linalg.half_solve(factor[..., :d, :d], x.mT)
    last = factor[..., d:, :]
    bottom = (1.0 - last[..., :d] @ half) / last[..., d:]
    return half.square().sum(-2) + bottom.square().squeeze(-2)


# --- the distribution -------------------------------------------------------------------------------------------------


class NaturalParameters(NamedTuple):
    """The paper's table of natural parameters: factors of WΣ⁻¹Wᵀ, Σ⁻¹Wᵀ, Σ⁻¹ and log|Σ|."""

    precision: Tensor  # −½ R⁻¹
    precision_mean: Tensor  # R⁻¹M
    scale: Tensor  # −½ (U + MᵀR⁻¹M)
    log_det: Tensor  # −½ (u + D_y + D_x + 1)


class MNIWDensities(MNIWParameters):
    @property
    def _dof(self) -> Tensor:
        return torch.as_tensor(self.dof, dtype=self.mean.dtype, device=self.mean.device)

    def natural(self) -> NaturalParameters:
        precision_mean = self.precision.times(self.mean)
        return NaturalParameters(
            -0.5 * self.precision.dense(),
            precision_mean,
            -0.5 * (self.scale + self.mean.mT @ precision_mean),
            -0.5 * (self._dof + self.n_outputs + self.n_inputs + 1),
        )

    @classmethod
    def from_natural(cls, natural: NaturalParameters, name: str = "MNIW") -> Self:
        precision = -2.0 * natural.precision
        factor = linalg.cholesky(precision, f"{name}: precision")
        half = linalg.half_solve(factor, natural.precision_mean)
        mean = linalg.transposed_half_solve(factor, half)
        scale = -2.0 * natural.scale - half.mT @ half
        dof = -2.0 * natural.log_det - (sum(mean.shape[-2:]) + 1)
        return cls(mean, precision, linalg.symmetric(scale), dof, name)

    def log_prob(self, weights: Tensor, noise: Tensor) -> Tensor:
        """log density at W (..., D_x, D_y) and Σ (..., D_y, D_y)."""
        d_x, d_y, u = self.n_inputs, self.n_outputs, self._dof
        noise_factor = linalg.cholesky(noise, "noise covariance")
        noise_logdet = linalg.logdet(noise_factor)
        whitened = transposed_factor_times(self.precision, weights - self.mean)
        quadratic = linalg.half_solve(noise_factor, whitened.mT).square().sum((-2, -1))
        normal = -0.5 * (quadratic + d_x * d_y * math.log(2 * math.pi) + d_x * noise_logdet - d_y * logdet(self.precision))
        trace = linalg.half_solve(noise_factor, self.scale_factor).square().sum((-2, -1))  # tr(U Σ⁻¹)
        wishart = (
            0.5 * u * linalg.logdet(self.scale_factor)
            - 0.5 * u * d_y * math.log(2)
            - torch.special.multigammaln(0.5 * u, d_y)
            - 0.5 * (u + d_y + 1) * noise_logdet
            - 0.5 * trace
        )
        return normal + wishart

    def log_evidence_of(self, posterior: MNIWDensities) -> Tensor:
        """log p(Y | X) of the data that led from this prior to that posterior: a ratio of normalising constants."""
        d_y, u_0, u = self.n_outputs, self._dof, posterior._dof
        return (
            -0.5 * (u - u_0) * d_y * math.log(math.pi)
            + 0.5 * d_y * (logdet(self.precision) - logdet(posterior.precision))
            + 0.5 * u_0 * linalg.logdet(self.scale_factor)
            - 0.5 * u * linalg.logdet(posterior.scale_factor)
            + torch.special.multigammaln(0.5 * u, d_y)
            - torch.special.multigammaln(0.5 * u_0, d_y)
        )

    def kl(self, other: MNIWDensities) -> Tensor:
        """KL(self ‖ other), as the expected matrix-normal part plus the inverse-Wishart part."""
        d_x, d_y, u, v = self.n_inputs, self.n_outputs, self._dof, other._dof
        trace_rows = ratio_trace(self.precision, other.precision)
        apart = transposed_factor_times(other.precision, self.mean - other.mean)
        # E[Σ⁻¹] = u U⁻¹ under self.
        distance = u * linalg.half_solve(self.scale_factor, apart.mT).square().sum((-2, -1))
        rows_logdet = logdet(self.precision) - logdet(other.precision)
        normal = 0.5 * (d_y * (trace_rows - d_x + rows_logdet) + distance)
        trace_noise = linalg.half_solve(self.scale_factor, other.scale_factor).square().sum((-2, -1))
        noise_logdet = linalg.logdet(self.scale_factor) - linalg.logdet(other.scale_factor)
        index = torch.arange(d_y, dtype=self.mean.dtype, device=self.mean.device)
        digamma = torch.digamma(0.5 * (u[..., None] - index)).sum(-1)
        wishart = (
            0.5 * v * noise_logdet
            + 0.5 * u * (trace_noise - d_y)
            + torch.special.multigammaln(0.5 * v, d_y)
            - torch.special.multigammaln(0.5 * u, d_y)
            + 0.5 * (u - v) * digamma
        )
        return normal + wishart
