"""What happens to a matrix that should be positive definite and is not.

It gets the smallest multiple of its own diagonal that makes its factorisation succeed, which is counted and warned about.
A multiple of the diagonal, unlike one of the identity, means the same to features measured in metres and in micrometres.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass, field

import torch
from torch import Tensor

# Relative to the diagonal. The first is below what float32 statistics resolve; the last changes a variance by 1 %.
_JITTERS = (1e-12, 1e-10, 1e-8, 1e-7, 1e-6, 1e-5, 1e-4, 1e-3, 1e-2)


class NumericalError(ArithmeticError):
    """A computation left the range of floating-point numbers; the message names the layer and a remedy."""


class NumericalRepairWarning(RuntimeWarning):
    """A matrix that should be positive definite was not, and was repaired; said once per matrix name."""


@dataclass
class Repairs:
    """How often each named matrix had to be repaired, and the largest jitter it needed."""

    count: dict[str, int] = field(default_factory=dict)
    largest: dict[str, float] = field(default_factory=dict)

    def add(self, name: str, jitter: float) -> None:
        if name not in self.count:
            warnings.warn(
                f"{name} was not positive definite and got a jitter of {jitter:g} times its diagonal. "
                "Results are those of a slightly stronger prior. Standardise the features, lower effective_size "
                "or use a float64 module to avoid this.",
                NumericalRepairWarning,
                stacklevel=4,
            )
        self.count[name] = self.count.get(name, 0) + 1
        self.largest[name] = max(self.largest.get(name, 0.0), jitter)


def repaired_factor(matrix: Tensor, info: Tensor, name: str, repairs: Repairs) -> Tensor:
    """Lower factors of matrices (..., D, D), of which those that `info` marks had none and are repaired one by one."""
    if not bool(torch.isfinite(matrix).all()):
        raise NumericalError(
            f"{name} contains NaN or infinite values. Check the inputs for extreme values, standardise them, "
            "lower step_size, or use a float64 module."
        )
    diagonal = torch.diag_embed(matrix.diagonal(dim1=-2, dim2=-1))
    amount = torch.zeros_like(info, dtype=matrix.dtype)  # what each batch element needs, 0 for those that are sound
    for jitter in _JITTERS:
        amount = torch.where(info != 0, jitter, amount)
        factor, info = torch.linalg.cholesky_ex(matrix + amount[..., None, None] * diagonal)
        if not bool(info.any()):
            repairs.add(name, jitter)
            return factor
    raise NumericalError(
        f"{name} is not positive definite, even with {_JITTERS[-1]:g} times its diagonal added. "
        "Raise noise_floor or lower prior_variance, step_size or effective_size."
    )
