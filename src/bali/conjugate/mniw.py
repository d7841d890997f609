"""The matrix-normal inverse-Wishart distribution: conjugate prior and posterior of a linear regression.

    Σ ~ W⁻¹(U, u),   W | Σ ~ MN(M, R, Σ),   that is   vec(W) | Σ ~ N(vec(M), Σ ⊗ R)

| here        | paper | shape           |                                                    |
|-------------|-------|-----------------|----------------------------------------------------|
| `mean`      | M     | (..., D_x, D_y) | bias row last                                      |
| `precision` | R⁻¹   | D_x inputs      | of the rows of W, a `Dense` or `Diagonal` matrix   |
| `scale`     | U     | (..., D_y, D_y) |                                                    |
| `dof`       | u     | number or (...) | SciPy's convention: density ∝ |Σ|^(−(u + D_y + 1)/2) |

Leading dimensions are a batch of independent distributions.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from functools import cached_property

import torch
from torch import Tensor

from bali.conjugate import linalg
from bali.conjugate.mniw_densities import MNIWDensities
from bali.conjugate.moments import Moments
from bali.conjugate.rows import Tokens
from bali.conjugate.sampling import chi_square, standard_normal
from bali.conjugate.symmetric import Diagonal, Symmetric, as_symmetric


@dataclass(frozen=True, init=False)
class MNIW(MNIWDensities):
    mean: Tensor
    precision: Symmetric
    scale: Tensor
    dof: Tensor | float
    name: str = field(default="MNIW", compare=False)  # for messages about its matrices
    repairs: linalg.Repairs | None = field(default=None, compare=False, repr=False)

    def __init__(
        self,
        mean: Tensor,
        precision: Symmetric | Tensor,
        scale: Tensor,
        dof: Tensor | float,
        name: str = "MNIW",
        repairs: linalg.Repairs | None = None,
    ) -> None:
        precision = as_symmetric(precision, f"{name}: precision", repairs)
        vars(self).update(mean=mean, precision=precision, scale=scale, dof=dof, name=name, repairs=repairs)

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
        named = {"name": f"{name}: precision", "repairs": repairs}
        precision = Diagonal.of_variance(variance, n_inputs, dtype, device, **named)
        mean = torch.zeros(*precision.values.shape, n_outputs, dtype=dtype, device=device)
        scale = torch.eye(n_outputs, dtype=dtype, device=device) * noise
        return cls(mean, precision, scale, n_outputs + 1.0 if dof is None else dof, name, repairs)

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
    def least_precision(self) -> float:
        """The smallest diagonal entry of the precision."""
        return float(self.precision.diagonal().min())

    @cached_property
    def least_scale(self) -> float:
        """The smallest diagonal entry of the scale."""
        return float(self.scale.diagonal(dim1=-2, dim2=-1).min())

    def with_precision(self, precision: Symmetric) -> MNIW:
        other = MNIW(self.mean, precision, self.scale, self.dof, self.name, self.repairs)
        if "scale_factor" in vars(self):
            vars(other)["scale_factor"] = self.scale_factor
        return other

    def with_same_precision(self, mean: Tensor, scale: Tensor, dof: Tensor | float) -> MNIW:
        """Another distribution with this precision; they share its factor, whichever of them computes it."""
        return MNIW(mean, self.precision, scale, dof, self.name, self.repairs)

    def with_mean(self, mean: Tensor) -> MNIW:
        """Another mean, and no factor computed again."""
        other = self.with_same_precision(mean, self.scale, self.dof)
        vars(other)["scale_factor"] = self.scale_factor
        return other

    @property
    def _dof(self) -> Tensor:
        return torch.as_tensor(self.dof, dtype=self.mean.dtype, device=self.mean.device)

    # --- conditioning -------------------------------------------------------------------------------------------

    def condition(self, moments: Moments) -> MNIW:
        """The posterior given data with these moments (paper, equation for R, M, U, u)."""
        assert moments.xx is not None
        return self.condition_at(self.precision.plus(moments.xx), moments)

    def condition_at(self, precision: Symmetric, moments: Moments) -> MNIW:
        """`condition` where the posterior's precision is known: nobody looks at the moments' XᵀX."""
        posterior = self.with_precision(precision)
        precision_mean = self.precision.times(self.mean) + moments.xy
        half = precision.half_solve(precision_mean)  # halfᵀhalf = MᵀR⁻¹M
        mean = precision.transposed_half_solve(half)
        scale = self.scale + self.mean.mT @ self.precision.times(self.mean) - half.mT @ half + moments.yy
        return posterior.with_same_precision(mean, linalg.symmetric(scale), self.dof + moments.n)

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
        spread = self.precision.transposed_half_solve(normal @ noise_factor.to(normal.dtype).mT)
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

    # --- prediction ---------------------------------------------------------------------------------------------

    def row_variance(self, x: Tensor | Tokens) -> Tensor:
        """xᵀRx for each row of x (..., n, D_in): the weights' share of an output's variance, in units of Σ.

        x may leave out the trailing column of ones.
        """
        return self.precision.row_variance(x)
