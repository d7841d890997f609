"""The parameters of the matrix-normal inverse-Wishart distribution, their factors, and weights drawn with them.

    Σ ~ W⁻¹(U, u),   W | Σ ~ MN(M, R, Σ),   that is   vec(W) | Σ ~ N(vec(M), Σ ⊗ R)

| here        | paper | shape           |                                                    |
|-------------|-------|-----------------|----------------------------------------------------|
| `mean`      | M     | (..., D_x, D_y) | bias row last                                      |
| `precision` | R⁻¹   | D_x inputs      | of the rows of W, a `Dense` or `Diagonal` matrix   |
| `scale`     | U     | (..., D_y, D_y) |                                                    |
| `dof`       | u     | number or (...) | SciPy's convention: density ∝ |Σ|^(−(u + D_y + 1)/2) |

Leading dimensions are a batch of independent distributions. This is what a step needs; `mniw.MNIW` has the rest.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Self

from torch import Tensor

from bali.conjugate import linalg
from bali.conjugate.symmetric import Symmetric, as_symmetric


@dataclass(frozen=True, init=False)
class MNIWParameters:
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

    @property
    def n_inputs(self) -> int:
        return self.mean.shape[-2]

    @property
    def n_outputs(self) -> int:
        return self.mean.shape[-1]

    @cached_property
    def scale_factor(self) -> Tensor:
        """Lower factor of U."""
        return linalg.cholesky(self.scale, f"{self.name}: noise scale", self.repairs)

    def forget_scale_factor(self) -> None:
        """Frees the scale's factor, which is computed again if it is asked for."""
        vars(self).pop("scale_factor", None)

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

    def with_mean(self, mean: Tensor) -> Self:
        """Another mean, and no factor computed again."""
        other = replace(self, mean=mean)
        vars(other)["scale_factor"] = self.scale_factor
        return other

    def noise_mode_factor(self) -> Tensor:
        """Lower factor of Σ at the mode of the inverse-Wishart, U / (u + D_y + 1)."""
        divisor = self.dof + self.n_outputs + 1
        return self.scale_factor / (divisor.sqrt()[..., None, None] if isinstance(divisor, Tensor) else math.sqrt(divisor))

    def weights_from(self, normal: Tensor, noise_factor: Tensor) -> Tensor:
        """W = M + C⁻ᵀ A Bᵀ for standard normal A (..., D_x, D_y), R⁻¹ = C Cᵀ and Σ = B Bᵀ, in A's own type."""
        spread = self.precision.transposed_half_solve(normal @ noise_factor.to(normal.dtype).mT)
        return spread.add_(self.mean.to(normal.dtype))
