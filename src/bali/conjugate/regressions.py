"""Bayesian linear regressions side by side, each of one output with a noise of its own, to which rows are added exactly.

    y = φᵀw + ε,   ε ~ N(0, σ²),   w | σ² ~ N(m, σ² Λ⁻¹),   σ² ~ inverse gamma(ν/2, ν s²/2)

Λ, Λm, ν s² + mᵀΛm and ν are sums over rows, so that rows may come in any order and by any way, and two posteriors that began
alike can be put together. Regressions that share their inputs share Λ: it has fewer leading dimensions, filled up with 1.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass

import torch
from torch import Tensor

from bali.conjugate import linalg
from bali.conjugate.sampling import chi_square, standard_normal


@dataclass(frozen=True)
class Regressions:
    precision: Tensor  # Λ, (..., D_x, D_x)
    drive: Tensor  # Λ m, (..., D_x)
    squares: Tensor  # ν s² + mᵀΛm, (...)
    dof: float  # ν, more than 2

    @classmethod
    def known(cls, precision: Tensor, noise: Tensor, n: float) -> Regressions:
        """With m = 0, and E σ² (...) given, which is known as well as n rows tell it."""
        drive = torch.zeros(*noise.shape, precision.shape[-1], dtype=precision.dtype, device=precision.device)
        return cls(precision, drive, n * noise, n + 2.0)

    def plus_rows(self, gram: Tensor, products: Tensor, squares: Tensor, n: float) -> Regressions:
        """With n rows more: ΦᵀΦ, Φᵀy and yᵀy of them."""
        return Regressions(self.precision + gram, self.drive + products, self.squares + squares, self.dof + n)

    def plus(self, other: Regressions, start: Regressions) -> Regressions:
        """What both have taken in since they were `start`."""
        return Regressions(
            self.precision + other.precision - start.precision,
            self.drive + other.drive - start.drive,
            self.squares + other.squares - start.squares,
            self.dof + other.dof - start.dof,
        )

    def equals(self, other: Regressions) -> bool:
        """The same numbers."""
        pairs = ((self.precision, other.precision), (self.drive, other.drive), (self.squares, other.squares))
        return self is other or (self.dof == other.dof and all(a.shape == b.shape and torch.equal(a, b) for a, b in pairs))

    def faded(self, share: float, least: Tensor) -> Regressions:
        """With this share of all rows forgotten; `least` is the part of Λ that no row gave, and stays."""
        kept = 1.0 - share
        precision = least + kept * (self.precision - least)
        return Regressions(precision, kept * self.drive, kept * self.squares, 2.0 + kept * (self.dof - 2.0))

    @functools.cached_property
    def factor(self) -> Tensor:
        return linalg.cholesky(self.precision, "precision of the output layer")

    @functools.cached_property
    def mean(self) -> Tensor:
        """m, (..., D_x)."""
        half = linalg.half_solve(self.factor, self.drive.unsqueeze(-1))
        return linalg.transposed_half_solve(self.factor, half).squeeze(-1)

    @functools.cached_property
    def noise(self) -> Tensor:
        """s², (...)."""
        return (self.squares - (self.drive * self.mean).sum(-1)).clamp_min(1e-300) / self.dof

    @property
    def expected_noise(self) -> Tensor:
        """E σ² = ν s² / (ν − 2)."""
        return self.noise * (self.dof / (self.dof - 2.0))

    def draw(self, n: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """n samples of w (n, ..., D_x) and σ² (n, ...)."""
        shape = (n, *self.noise.shape)
        variances = self.noise * self.dof / chi_square(self.noise.new_full(shape, self.dof), generator)
        normal = standard_normal((*shape, self.drive.shape[-1]), self.drive, generator).unsqueeze(-1)
        departures = linalg.transposed_half_solve(self.factor, normal).squeeze(-1)
        return self.mean + variances.sqrt()[..., None] * departures, variances
