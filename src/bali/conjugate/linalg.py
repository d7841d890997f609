"""Triangular algebra behind one gate: every Cholesky factorisation of the package is made by `cholesky`.

No caller adds anything to a matrix: where a factorisation fails, and only there, `repairs.py` does. Matrices whose structure
is known, such as diagonal ones, are types in `symmetric.py`.
"""

import math
from collections.abc import Callable

import torch
from torch import Tensor

from bali.conjugate.repairs import NumericalError as NumericalError
from bali.conjugate.repairs import NumericalRepairWarning as NumericalRepairWarning
from bali.conjugate.repairs import Repairs as Repairs
from bali.conjugate.repairs import repaired_factor


def cholesky(matrix: Tensor, name: str = "matrix", repairs: Repairs | None = None) -> Tensor:
    """Lower Cholesky factor of a batch of symmetric matrices (..., D, D).

    Raises `NumericalError` where there are NaNs or infinities, or where no small repair helps.
    """
    factor, info = torch.linalg.cholesky_ex(matrix)
    failed, trace = (info, factor.trace()) if info.dim() == 0 else (info.any(), factor.diagonal(dim1=-2, dim2=-1).sum())
    # An infinite diagonal passes LAPACK's test, so the factor is looked at as well.
    if not failed.item() and math.isfinite(trace.item()):
        return factor
    return repaired_factor(matrix, info, name, Repairs() if repairs is None else repairs)


# LAPACK's factors and torch's rows are laid out so that XA = B is solved two to three times faster than AX = B, unless
# there are few right-hand sides.
_FEW_COLUMNS = 8


def half_solve(factor: Tensor, right: Tensor) -> Tensor:
    """C⁻¹B for the lower factor C of A = C Cᵀ, so that (C⁻¹B)ᵀ(C⁻¹B) = BᵀA⁻¹B is symmetric by construction.

    A factor of one column, (..., D, 1), is that of a diagonal matrix.
    """
    return right / factor if factor.shape[-1] == 1 else _with_shared_factor(_half_solve, factor, right)


def transposed_half_solve(factor: Tensor, right: Tensor) -> Tensor:
    """C⁻ᵀB: turns standard normal columns into columns with covariance A⁻¹."""
    return right / factor if factor.shape[-1] == 1 else _with_shared_factor(_transposed_half_solve, factor, right)


def _half_solve(factor: Tensor, right: Tensor) -> Tensor:
    if right.shape[-1] < _FEW_COLUMNS:
        return torch.linalg.solve_triangular(factor, right, upper=False)
    return torch.linalg.solve_triangular(factor.mT, right.mT, upper=True, left=False).mT


def _transposed_half_solve(factor: Tensor, right: Tensor) -> Tensor:
    if right.shape[-1] < _FEW_COLUMNS:
        return torch.linalg.solve_triangular(factor.mT, right, upper=True)
    return torch.linalg.solve_triangular(factor, right.mT, upper=False, left=False).mT


def _with_shared_factor(solve: Callable[[Tensor, Tensor], Tensor], factor: Tensor, right: Tensor) -> Tensor:
    """Leading dimensions of B that share one factor become columns: torch would copy the factor for each of them."""
    if right.dim() == 2 or factor.dim() > right.dim():
        return solve(factor, right)
    own = (1,) * (right.dim() - factor.dim()) + tuple(factor.shape[:-2])
    shared = [i for i, (f, r) in enumerate(zip(own, right.shape[:-2], strict=True)) if f == 1 and r > 1]
    if not shared:
        return solve(factor, right)
    last = list(range(-len(shared), 0))
    moved = right.movedim(shared, last)
    kept = [f for i, f in enumerate(own) if i not in shared]
    solved = solve(factor.reshape(*kept, *factor.shape[-2:]), moved.flatten(-1 - len(shared)))
    return solved.reshape(*solved.shape[:-1], *moved.shape[-1 - len(shared) :]).movedim(last, shared)


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
