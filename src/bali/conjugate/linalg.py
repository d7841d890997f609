"""Triangular algebra behind one gate.

Every Cholesky factorisation of the package is made by `cholesky`. It is the only place that adds anything
to a matrix: nothing when the factorisation succeeds, and otherwise the smallest multiple of the matrix's own
diagonal that makes it succeed, which is counted and warned about. A multiple of the diagonal, unlike a
multiple of the identity, means the same to features measured in metres and in micrometres.

Matrices whose structure is known, such as diagonal ones, are types in `symmetric.py`.
"""

import math
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
                stacklevel=3,
            )
        self.count[name] = self.count.get(name, 0) + 1
        self.largest[name] = max(self.largest.get(name, 0.0), jitter)


def cholesky(matrix: Tensor, name: str = "matrix", repairs: Repairs | None = None) -> Tensor:
    """Lower Cholesky factor of a batch of symmetric matrices (..., D, D).

    Batch elements that are not positive definite are repaired one by one. Raises `NumericalError` where there
    are NaNs or infinities, or where no small repair helps.
    """
    factor, info = torch.linalg.cholesky_ex(matrix)
    failed, trace = (info, factor.trace()) if info.dim() == 0 else (info.any(), factor.diagonal(dim1=-2, dim2=-1).sum())
    # An infinite diagonal passes LAPACK's test, so the factor is looked at as well.
    if not failed.item() and math.isfinite(trace.item()):
        return factor
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
            (Repairs() if repairs is None else repairs).add(name, jitter)
            return factor
    raise NumericalError(
        f"{name} is not positive definite, even with {_JITTERS[-1]:g} times its diagonal added. "
        "Raise noise_floor or lower prior_variance, step_size or effective_size."
    )


# LAPACK's factors and torch's rows are laid out so that XA = B is solved two to three times faster than AX = B, unless
# there are few right-hand sides.
_FEW_COLUMNS = 8


def half_solve(factor: Tensor, right: Tensor) -> Tensor:
    """C⁻¹B for the lower factor C of A = C Cᵀ, so that (C⁻¹B)ᵀ(C⁻¹B) = BᵀA⁻¹B is symmetric by construction."""
    if factor.shape[-1] == 1:  # a single number
        return right / factor
    if right.shape[-1] < _FEW_COLUMNS:
        return torch.linalg.solve_triangular(factor, right, upper=False)
    return torch.linalg.solve_triangular(factor.mT, right.mT, upper=True, left=False).mT


def transposed_half_solve(factor: Tensor, right: Tensor) -> Tensor:
    """C⁻ᵀB: turns standard normal columns into columns with covariance A⁻¹."""
    if factor.shape[-1] == 1:
        return right / factor
    if right.shape[-1] < _FEW_COLUMNS:
        return torch.linalg.solve_triangular(factor.mT, right, upper=True)
    return torch.linalg.solve_triangular(factor, right.mT, upper=False, left=False).mT


def plus_product(start: Tensor, left: Tensor, right: Tensor, alpha: float = 1.0) -> Tensor:
    """start + alpha · left @ right, in one call where there are no leading dimensions or one.

    Small matrices take less time than the calls: a batched `@` is five of them, and the sum one more.
    """
    dims = (start.dim(), left.dim(), right.dim())
    if dims == (2, 2, 2):
        return torch.addmm(start, left, right, alpha=alpha)
    if dims[2] == 3 and all(d == 2 or (d == 3 and len(t) == len(right)) for d, t in ((dims[0], start), (dims[1], left))):
        return torch.baddbmm(start, left.expand(len(right), *left.shape[-2:]), right, alpha=alpha)
    return torch.add(start, left @ right, alpha=alpha)


def logdet(factor: Tensor) -> Tensor:
    """log |A| from the lower factor of A."""
    return 2.0 * factor.diagonal(dim1=-2, dim2=-1).log().sum(-1)


def symmetric(matrix: Tensor) -> Tensor:
    """The symmetric part, which rounding may have left."""
    return 0.5 * (matrix + matrix.mT)
