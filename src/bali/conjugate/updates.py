"""The posterior after one more mini-batch: the paper's update in its mean form, and one for a precision that is known.

All take the moments of a batch of (X, ΔY), scaled to N_eff rows, where ΔY = Y − X·reference are the targets
relative to the previous mean, and the debiased rate ρ of the moving average. R_t⁻¹ = R₀⁻¹ + the average of XᵀX, which is the
average of R₀⁻¹ + XᵀX, is kept and updated as one matrix by the caller. Solves run in the type of the moments.
"""

from __future__ import annotations

from dataclasses import replace

from torch import Tensor

from bali.conjugate import linalg
from bali.conjugate.averages import averaged_into
from bali.conjugate.mniw import MNIW
from bali.conjugate.moments import Moments
from bali.conjugate.symmetric import Symmetric


def _push(prior: MNIW, reference: Tensor, batch: Moments) -> tuple[Tensor, Tensor]:
    """B = XᵀΔY − R₀⁻¹A and AᵀR₀⁻¹A + ΔYᵀΔY, where A = M_{t−1} − M₀: what a batch asks of M and U, at the previous mean."""
    departure = reference if prior.mean_is_zero else reference - prior.mean
    departure = departure.to(batch.xy.dtype)
    pull = prior.precision.times(departure)
    return batch.xy - pull, linalg.plus_product(batch.yy, departure.mT, pull)


def _scale(prior: MNIW, previous: MNIW | None, residual: Tensor, rate: float) -> Tensor:
    """(1−ρ) U_{t−1} + ρ (U₀ + residual)."""
    return averaged_into(None if previous is None else previous.scale, prior.scale + residual, rate)


def mean_update(
    prior: MNIW, previous: MNIW | None, reference: Tensor, precision: Symmetric, batch: Moments, rate: float
) -> MNIW:
    """The update written on the distribution's own parameters (the paper's appendix on mean updates, extended to U).

    With A = M_{t−1} − M₀ and B = XᵀΔY − R₀⁻¹A,

        M_t = M_{t−1} + ρ R_t B
        U_t = (1−ρ) U_{t−1} + ρ (U₀ + AᵀR₀⁻¹A + ΔYᵀΔY − ρ BᵀR_t B)

    U_t is the minimum of the averaged quadratic objective, expanded about M_{t−1}: it adds and subtracts squares of
    residuals, where U₀ + YᵀY − MᵀR⁻¹M is a small difference of large numbers.
    """
    drive, residual = _push(prior, reference, batch)
    half = precision.half_solve(drive)
    del drive  # is as large as the weights, like most of what is here
    mean = reference.add(precision.transposed_half_solve(half), alpha=rate)
    residual = linalg.plus_product(residual, half.mT, half, -rate)
    del half
    scale = _scale(prior, previous, residual, rate)
    return replace(prior, mean=mean, precision=precision, scale=scale, dof=prior.dof + batch.n)


def fixed_precision_update(
    prior: MNIW, previous: MNIW | None, reference: Tensor, precision: Symmetric, batch: Moments, rate: float
) -> MNIW:
    """The update with a precision that is known: that of all the data, not the average over the same batches.

    M moves as in `mean_update`. U is measured about the previous mean: that needs no subtraction, so it is positive
    definite with any precision, and it is larger than the minimum that `mean_update` finds by what one step explains.
    """
    drive, residual = _push(prior, reference, batch)
    mean = reference.add(precision.solve(drive), alpha=rate)
    scale = _scale(prior, previous, residual, rate)
    return replace(prior, mean=mean, precision=precision, scale=scale, dof=prior.dof + batch.n)
