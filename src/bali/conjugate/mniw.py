"""The matrix-normal inverse-Wishart distribution: conjugate prior and posterior of a linear regression.

Its parameters, and what a step needs of them, are in `mniw_parameters.py`; densities in `mniw_densities.py`.
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor

from bali.conjugate import linalg
from bali.conjugate.mniw_densities import MNIWDensities, row_variance
from bali.conjugate.moments import Moments
from bali.conjugate.rows import Tokens
from bali.conjugate.sampling import chi_square, standard_normal
from bali.conjugate.symmetric import Diagonal, Symmetric


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

    def with_precision(self, precision: Symmetric) -> MNIW:
        """Another precision; the scale's factor is not computed again."""
        other = replace(self, precision=precision)
        if "scale_factor" in vars(self):
            vars(other)["scale_factor"] = self.scale_factor
        return other

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
