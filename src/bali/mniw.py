"""The matrix-normal inverse-Wishart distribution: conjugate prior and posterior of a linear regression.

    Σ ~ W⁻¹(U, u),   W | Σ ~ MN(M, R, Σ),   that is   vec(W) | Σ ~ N(vec(M), Σ ⊗ R)

| here        | paper | shape           |                                                    |
|-------------|-------|-----------------|----------------------------------------------------|
| `mean`      | M     | (..., D_x, D_y) | bias row last                                      |
| `precision` | R⁻¹   | (..., D_x, D_x) | of the rows of W                                   |
| `scale`     | U     | (..., D_y, D_y) |                                                    |
| `dof`       | u     | number or (...) | SciPy's convention: density ∝ |Σ|^(−(u + D_y + 1)/2) |

Leading dimensions are a batch of independent distributions. A diagonal precision may be given as a column (..., D_x, 1) of
its diagonal, as that of an embedding's tokens is.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import NamedTuple

import torch
from torch import Tensor

from bali import linalg
from bali.gram import tokens
from bali.moments import Moments
from bali.precision import WithPrecision
from bali.sampling import chi_square, standard_normal


class NaturalParameters(NamedTuple):
    """The paper's table of natural parameters: factors of WΣ⁻¹Wᵀ, Σ⁻¹Wᵀ, Σ⁻¹ and log|Σ|."""

    precision: Tensor  # −½ R⁻¹
    precision_mean: Tensor  # R⁻¹M
    scale: Tensor  # −½ (U + MᵀR⁻¹M)
    log_det: Tensor  # −½ (u + D_y + D_x + 1)


class StudentT(NamedTuple):
    """Multivariate Student-t over the rows of a prediction: location (..., n, D_y), shape = inflation · matrix."""

    location: Tensor
    inflation: Tensor  # (..., n)
    matrix: Tensor  # (..., D_y, D_y)
    dof: Tensor  # (...)


@dataclass(frozen=True)
class MNIW(WithPrecision):
    mean: Tensor
    precision: Tensor
    scale: Tensor
    dof: Tensor | float
    name: str = field(default="MNIW", compare=False)  # for messages about its matrices
    repairs: linalg.Repairs | None = field(default=None, compare=False, repr=False)
    # What was computed of the precision; shared by `with_same_precision`.
    _of_precision: dict[tuple[str, torch.dtype], Tensor] = field(init=False, default_factory=dict, compare=False, repr=False)

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
        as_column: bool = False,
    ) -> MNIW:
        """M = 0, R = variance · I, U = noise · I, and the smallest integer dof whose prediction has a mean: D_y + 1.

        A tensor of variances gives a batch of priors; `as_column` keeps the precision as the column of its diagonal.
        """
        eye_y = torch.eye(n_outputs, dtype=dtype, device=device)
        inverse = 1.0 / torch.as_tensor(variance, dtype=dtype, device=device)
        entries = inverse[..., None].expand(*inverse.shape, n_inputs)
        precision = entries[..., None].clone() if as_column else torch.diag_embed(entries)
        mean = torch.zeros(*inverse.shape, n_inputs, n_outputs, dtype=dtype, device=device)
        return cls(mean, precision, eye_y * noise, n_outputs + 1.0 if dof is None else dof, name)

    @property
    def n_inputs(self) -> int:
        return self.mean.shape[-2]

    @property
    def n_outputs(self) -> int:
        return self.mean.shape[-1]

    def forget_scale_factor(self) -> None:
        """Frees the scale's factor, which is computed again if it is asked for."""
        vars(self).pop("scale_factor", None)

    @cached_property
    def scale_factor(self) -> Tensor:
        """Lower factor of U."""
        return linalg.cholesky(self.scale, f"{self.name}: noise scale", self.repairs)

    @cached_property
    def mean_is_zero(self) -> bool:
        return not bool(self.mean.any())

    @cached_property
    def least_scale(self) -> float:
        """The smallest diagonal entry of the scale."""
        return float(self.scale.diagonal(dim1=-2, dim2=-1).min())

    def with_precision(self, precision: Tensor) -> MNIW:
        other = MNIW(self.mean, precision, self.scale, self.dof, self.name, self.repairs)
        if "scale_factor" in vars(self):
            vars(other)["scale_factor"] = self.scale_factor
        return other

    def with_same_precision(self, mean: Tensor, scale: Tensor, dof: Tensor | float) -> MNIW:
        """Another distribution with this precision; they share its factor, whichever of them computes it."""
        other = MNIW(mean, self.precision, scale, dof, self.name, self.repairs)
        vars(other)["_of_precision"] = self._of_precision
        return other

    def with_mean(self, mean: Tensor) -> MNIW:
        """Another mean, and no factor computed again."""
        other = self.with_same_precision(mean, self.scale, self.dof)
        vars(other)["scale_factor"] = self.scale_factor
        return other

    def to(self, dtype: torch.dtype) -> MNIW:
        """The same distribution in another type; factors are converted, not computed again."""
        if dtype == self.mean.dtype:
            return self
        other = replace(self, mean=self.mean.to(dtype), precision=self.precision.to(dtype), scale=self.scale.to(dtype))
        other._of_precision["factor", dtype] = self.precision_factor_as(dtype)
        vars(other)["scale_factor"] = self.scale_factor.to(dtype)
        return other

    @property
    def _dof(self) -> Tensor:
        return torch.as_tensor(self.dof, dtype=self.mean.dtype, device=self.mean.device)

    # --- conditioning -------------------------------------------------------------------------------------------

    def condition(self, moments: Moments) -> MNIW:
        """The posterior given data with these moments (paper, equation for R, M, U, u)."""
        return self.condition_at(self.precision_plus(moments.xx), moments)

    def condition_at(self, precision: Tensor, moments: Moments) -> MNIW:
        """`condition` where the posterior's precision is known: nobody looks at the moments' XᵀX."""
        posterior = self.with_precision(precision)
        precision_mean = self.precision_times(self.mean) + moments.xy
        half = linalg.half_solve(posterior.precision_factor, precision_mean)  # halfᵀhalf = MᵀR⁻¹M
        mean = linalg.transposed_half_solve(posterior.precision_factor, half)
        scale = self.scale + self.mean.mT @ self.precision_times(self.mean) - half.mT @ half + moments.yy
        return posterior.with_same_precision(mean, linalg.symmetric(scale), self.dof + moments.n)

    def natural(self) -> NaturalParameters:
        precision_mean = self.precision_times(self.mean)
        return NaturalParameters(
            -0.5 * self.precision,
            precision_mean,
            -0.5 * (self.scale + self.mean.mT @ precision_mean),
            -0.5 * (self._dof + self.n_outputs + self.n_inputs + 1),
        )

    @classmethod
    def from_natural(cls, natural: NaturalParameters, name: str = "MNIW") -> MNIW:
        precision = -2.0 * natural.precision
        factor = linalg.cholesky(precision, f"{name}: precision")
        half = linalg.half_solve(factor, natural.precision_mean)
        mean = linalg.transposed_half_solve(factor, half)
        scale = -2.0 * natural.scale - half.mT @ half
        dof = -2.0 * natural.log_det - (sum(mean.shape[-2:]) + 1)
        return cls(mean, precision, linalg.symmetric(scale), dof, name)

    # --- noise covariance and samples ---------------------------------------------------------------------------

    def noise_mode(self) -> Tensor:
        """Σ at the mode of the inverse-Wishart: U / (u + D_y + 1)."""
        return self.scale / (self._dof + self.n_outputs + 1)[..., None, None]

    def noise_mode_factor(self) -> Tensor:
        """Lower factor of `noise_mode`."""
        divisor = self.dof + self.n_outputs + 1
        return self.scale_factor / (divisor.sqrt()[..., None, None] if isinstance(divisor, Tensor) else math.sqrt(divisor))

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

    def weights_from(self, normal: Tensor, noise_factor: Tensor) -> Tensor:
        """W = M + C⁻ᵀ A Bᵀ for standard normal A (..., D_x, D_y), R⁻¹ = C Cᵀ and Σ = B Bᵀ, in A's own type."""
        factor = self.precision_factor_as(normal.dtype)
        spread = linalg.transposed_half_solve(factor, normal @ noise_factor.to(normal.dtype).mT)
        return spread.add_(self.mean.to(normal.dtype))

    def sample_weights(self, shape: tuple[int, ...] = (), generator: torch.Generator | None = None) -> Tensor:
        """W given the mode of Σ, (*shape, ..., D_x, D_y)."""
        normal = standard_normal((*shape, *self.mean.shape), self.mean, generator)
        return self.weights_from(normal, self.noise_mode_factor())

    def sample(self, shape: tuple[int, ...] = (), generator: torch.Generator | None = None) -> tuple[Tensor, Tensor]:
        """(W, Σ) jointly."""
        root = self.sample_noise_factor(shape, generator)
        normal = standard_normal((*shape, *self.mean.shape), self.mean, generator)
        return self.weights_from(normal, root), root @ root.mT

    # --- densities ----------------------------------------------------------------------------------------------

    def log_prob(self, weights: Tensor, noise: Tensor) -> Tensor:
        """log density at W (..., D_x, D_y) and Σ (..., D_y, D_y)."""
        d_x, d_y, u = self.n_inputs, self.n_outputs, self._dof
        noise_factor = linalg.cholesky(noise, "noise covariance")
        noise_logdet = linalg.logdet(noise_factor)
        whitened = linalg.transposed_times(self.precision_factor, weights - self.mean)
        quadratic = linalg.half_solve(noise_factor, whitened.mT).square().sum((-2, -1))
        normal = -0.5 * (
            quadratic + d_x * d_y * math.log(2 * math.pi) + d_x * noise_logdet - d_y * linalg.logdet(self.precision_factor)
        )
        trace = linalg.half_solve(noise_factor, self.scale_factor).square().sum((-2, -1))  # tr(U Σ⁻¹)
        wishart = (
            0.5 * u * linalg.logdet(self.scale_factor)
            - 0.5 * u * d_y * math.log(2)
            - torch.special.multigammaln(0.5 * u, d_y)
            - 0.5 * (u + d_y + 1) * noise_logdet
            - 0.5 * trace
        )
        return normal + wishart

    def log_evidence(self, moments: Moments) -> Tensor:
        """log p(Y | X) with W and Σ integrated out, for this distribution as the prior."""
        return self.log_evidence_of(self.condition(moments))

    def log_evidence_of(self, posterior: MNIW) -> Tensor:
        """The `log_evidence` of the data that led from this prior to that posterior: a ratio of normalising constants."""
        d_y, u_0, u = self.n_outputs, self._dof, posterior._dof
        return (
            -0.5 * (u - u_0) * d_y * math.log(math.pi)
            + 0.5 * d_y * (linalg.logdet(self.precision_factor) - linalg.logdet(posterior.precision_factor))
            + 0.5 * u_0 * linalg.logdet(self.scale_factor)
            - 0.5 * u * linalg.logdet(posterior.scale_factor)
            + torch.special.multigammaln(0.5 * u, d_y)
            - torch.special.multigammaln(0.5 * u_0, d_y)
        )

    def kl(self, other: MNIW) -> Tensor:
        """KL(self ‖ other), as the expected matrix-normal part plus the inverse-Wishart part."""
        d_x, d_y, u, v = self.n_inputs, self.n_outputs, self._dof, other._dof
        trace_rows = linalg.half_solve(self.precision_factor, other.precision_factor).square().sum((-2, -1))
        apart = linalg.transposed_times(other.precision_factor, self.mean - other.mean)
        # E[Σ⁻¹] = u U⁻¹ under self.
        distance = u * linalg.half_solve(self.scale_factor, apart.mT).square().sum((-2, -1))
        rows_logdet = linalg.logdet(self.precision_factor) - linalg.logdet(other.precision_factor)
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

    # --- prediction ---------------------------------------------------------------------------------------------

    def row_variance(self, x: Tensor) -> Tensor:
        """xᵀRx for each row of x (..., n, D_in): the weights' share of an output's variance, in units of Σ.

        x may leave out the trailing column of ones.
        """
        d = x.shape[-1]
        if x.is_sparse:
            return self.precision_factor[..., tokens(x), 0].square().reciprocal()
        if d == self.n_inputs:
            half = linalg.half_solve(self.precision_factor, x.mT)
        else:
            half = linalg.half_solve(self.precision_factor[..., :d, :d], x.mT)
            last = self.precision_factor[..., d:, :]
            bottom = (1.0 - last[..., :d] @ half) / last[..., d:]
            return half.square().sum(-2) + bottom.square().squeeze(-2)
        return half.square().sum(-2)

    def predictive(self, x: Tensor) -> StudentT:
        """Closed-form posterior predictive of rows x (..., n, D_x), ones included: y ~ t(Mᵀx, (1 + xᵀRx) U/ν, ν)."""
        dof = self._dof - self.n_outputs + 1
        return StudentT(x @ self.mean, 1.0 + self.row_variance(x), self.scale / dof[..., None, None], dof)
