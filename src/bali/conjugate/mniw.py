"""The matrix-normal inverse-Wishart distribution: conjugate prior and posterior of a linear regression.

Its parameters, and what a step needs of them, are in `mniw_parameters.py`; densities, evidence, divergence and predictions,
and what these ask of a precision R⁻¹ = C Cᵀ, are here.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor

from bali.conjugate import linalg
from bali.conjugate.mniw_parameters import MNIWParameters
from bali.conjugate.moments import Moments
from bali.conjugate.rows import Tokens
from bali.conjugate.sampling import chi_square, standard_normal
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


class MNIWDensities(MNIWParameters):
    @property
    def _dof(self) -> Tensor:
        return torch.as_tensor(self.dof, dtype=self.mean.dtype, device=self.mean.device)

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


# --- conditioning, samples and predictions ----------------------------------------------------------------------------


class StudentT(NamedTuple):
    """Multivariate Student-t over the rows of a prediction: location (..., n, D_y), shape = inflation · matrix."""

    location: Tensor
    inflation: Tensor  # (..., n)
    matrix: Tensor  # (..., D_y, D_y)
    dof: Tensor  # (...)


class MNIW(MNIWDensities):
    """Σ ~ W⁻¹(scale, dof) and W | Σ ~ MN(mean, precision⁻¹, Σ): the noise and the weights of a linear regression."""

    @classmethod
    def prior(
        cls,
        n_inputs: int,
        n_outputs: int,
        *,
        variance: float | Tensor = 1.0,
        noise: float = 1.0,
        dof: float | None = None,
        dtype: torch.dtype = torch.float64,
        device: torch.device | None = None,
        name: str = "prior",
        repairs: linalg.Repairs | None = None,
    ) -> MNIW:
        """M = 0, R = variance · I, U = noise · I, and the smallest integer dof whose prediction has a mean: D_y + 1.

        A tensor of variances gives a batch of priors.
        """
        inverse = 1.0 / torch.as_tensor(variance, dtype=dtype, device=device)
        entries = inverse[..., None].expand(*inverse.shape, n_inputs).clone()
        precision = Diagonal(entries, f"{name}: precision", repairs)
        mean = torch.zeros(*precision.values.shape, n_outputs, dtype=dtype, device=device)
        scale = torch.eye(n_outputs, dtype=dtype, device=device) * noise
        return cls(mean, precision, scale, n_outputs + 1.0 if dof is None else dof, name, repairs)

    # --- conditioning -------------------------------------------------------------------------------------------

    def condition(self, moments: Moments) -> MNIW:
        """The posterior given data with these moments (paper, equation for R, M, U, u)."""
        assert moments.xx is not None
        return self.condition_at(self.precision.plus(moments.xx), moments)

    def condition_at(self, precision: Symmetric, moments: Moments) -> MNIW:
        """`condition` where the posterior's precision is known: nobody looks at the moments' XᵀX."""
        precision_mean = self.precision.times(self.mean) + moments.xy
        half = precision.half_solve(precision_mean)  # halfᵀhalf = MᵀR⁻¹M
        mean = precision.transposed_half_solve(half)
        scale = self.scale + self.mean.mT @ self.precision.times(self.mean) - half.mT @ half + moments.yy
        return replace(self, mean=mean, precision=precision, scale=linalg.symmetric(scale), dof=self.dof + moments.n)

    def log_evidence(self, moments: Moments) -> Tensor:
        """log p(Y | X) with W and Σ integrated out, for this distribution as the prior."""
        return self.log_evidence_of(self.condition(moments))

    # --- noise covariance and samples ---------------------------------------------------------------------------

    def noise_mode(self) -> Tensor:
        """Σ at the mode of the inverse-Wishart: U / (u + D_y + 1)."""
        return self.scale / (self._dof + self.n_outputs + 1)[..., None, None]

    def sample_noise_factor(self, shape: tuple[int, ...] = (), generator: torch.Generator | None = None) -> Tensor:
        """Roots B, (*shape, ..., D_y, D_y), of samples Σ = B Bᵀ from W⁻¹(U, u), by Bartlett's decomposition."""
        # Σ⁻¹ = L⁻ᵀ T Tᵀ L⁻¹ for U = L Lᵀ and lower T with T_ii² ~ χ²(u − i), i from 0, and T_ij ~ N(0, 1); so B = L T⁻ᵀ.
        d = self.n_outputs
        index = torch.arange(d, dtype=self.mean.dtype, device=self.mean.device)
        degrees = (self._dof[..., None] - index).expand(*shape, *self.scale.shape[:-1])
        if bool((degrees <= 0).any()):
            raise ValueError(f"{self.name}: dof must exceed D_y - 1 = {d - 1} to sample the noise, got {self.dof}")
        normal = standard_normal((*degrees.shape, d), self.mean, generator)
        bartlett = normal.tril(-1) + torch.diag_embed(chi_square(degrees, generator).sqrt())
        eye = torch.eye(d, dtype=self.mean.dtype, device=self.mean.device).expand_as(bartlett)
        return self.scale_factor @ linalg.half_solve(bartlett, eye).mT

    def noise_root(self, noise: str, generator: torch.Generator | None) -> Tensor:
        """A root of Σ: at its "mode", or of a "sample"."""
        return self.noise_mode_factor() if noise == "mode" else self.sample_noise_factor((), generator)

    def sample_weights(self, shape: tuple[int, ...] = (), generator: torch.Generator | None = None) -> Tensor:
        """W given the mode of Σ, (*shape, ..., D_x, D_y)."""
        normal = standard_normal((*shape, *self.mean.shape), self.mean, generator)
        return self.weights_from(normal, self.noise_mode_factor())

    def sample(self, shape: tuple[int, ...] = (), generator: torch.Generator | None = None) -> tuple[Tensor, Tensor]:
        """(W, Σ) jointly."""
        root = self.sample_noise_factor(shape, generator)
        normal = standard_normal((*shape, *self.mean.shape), self.mean, generator)
        return self.weights_from(normal, root), root @ root.mT

    # --- prediction ---------------------------------------------------------------------------------------------

    def row_variance(self, x: Tensor | Tokens) -> Tensor:
        """xᵀRx for each row of x (..., n, D_in): the weights' share of an output's variance, in units of Σ.

        x may leave out the trailing column of ones.
        """
        return row_variance(self.precision, x)

    def predictive(self, x: Tensor) -> StudentT:
        """Closed-form posterior predictive of rows x (..., n, D_x), ones included: y ~ t(Mᵀx, (1 + xᵀRx) U/ν, ν)."""
        dof = self._dof - self.n_outputs + 1
        return StudentT(x @ self.mean, 1.0 + self.row_variance(x), self.scale / dof[..., None, None], dof)
