"""What densities, predictions and reports ask of a precision R⁻¹ = C Cᵀ; no step of an inference does."""

from __future__ import annotations

import torch
from torch import Tensor

from bali.conjugate import linalg
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
