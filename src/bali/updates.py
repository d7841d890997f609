"""The posterior after one more mini-batch: the two forms of the paper, and two that save work.

All take the moments of a batch of (X, ΔY), scaled to N_eff rows, where ΔY = Y − X·reference are the targets
relative to the previous mean, and the debiased rate ρ of the moving average. R_t⁻¹ = R₀⁻¹ + the average of XᵀX, which is the
average of R₀⁻¹ + XᵀX, is kept and updated as one matrix by the caller. Solves run in the type of the moments.
"""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor

from bali import linalg
from bali.mniw import MNIW
from bali.moments import Moments, averaged, averaged_into


class _Push(NamedTuple):
    """What a batch asks of M and U, at the previous mean."""

    drive: Tensor  # B = XᵀΔY − R₀⁻¹A, where A = M_{t−1} − M₀
    residual: Tensor  # AᵀR₀⁻¹A + ΔYᵀΔY


def _push(prior: MNIW, reference: Tensor, batch: Moments) -> _Push:
    departure = reference if prior.mean_is_zero else reference - prior.mean
    departure = departure.to(batch.xy.dtype)
    pull = prior.precision_times(departure)
    residual = linalg.plus_product(batch.yy, departure.mT, pull)
    return _Push(batch.xy - pull, residual)


def _scale(prior: MNIW, previous: MNIW | None, residual: Tensor, rate: float) -> Tensor:
    """(1−ρ) U_{t−1} + ρ (U₀ + residual)."""
    return averaged_into(None if previous is None else previous.scale, prior.scale + residual, rate)


def mean_update(
    prior: MNIW, previous: MNIW | None, reference: Tensor, precision: Tensor, batch: Moments, rate: float
) -> MNIW:
    """The update written on the distribution's own parameters (the paper's appendix on mean updates, extended to U).

    With A = M_{t−1} − M₀ and B = XᵀΔY − R₀⁻¹A,

        M_t = M_{t−1} + ρ R_t B
        U_t = (1−ρ) U_{t−1} + ρ (U₀ + AᵀR₀⁻¹A + ΔYᵀΔY − ρ BᵀR_t B)

    U_t is the minimum of the averaged quadratic objective, expanded about M_{t−1}: it adds and subtracts squares of
    residuals, where U₀ + YᵀY − MᵀR⁻¹M is a small difference of large numbers.
    """
    posterior = prior.with_precision(precision)
    factor = posterior.precision_factor_as(batch.xy.dtype)
    drive, residual = _push(prior, reference, batch)
    half = linalg.half_solve(factor, drive)
    del drive  # is as large as the weights, like most of what is here
    mean = reference.add(linalg.transposed_half_solve(factor, half), alpha=rate)
    residual = linalg.plus_product(residual, half.mT, half, -rate)
    del half
    scale = _scale(prior, previous, residual, rate)
    return posterior.with_same_precision(mean, scale, prior.dof + batch.n)


def exact_input_update(
    prior: MNIW, previous: MNIW | None, reference: Tensor, known: MNIW, batch: Moments, rate: float
) -> MNIW:
    """The update with the precision of `known`: that of all the data, not the average over the same batches.

    M moves as in `mean_update`. U is measured about the previous mean: that needs no subtraction, so it is positive
    definite with any precision, and it is larger than the minimum that `mean_update` finds by what one step explains.
    """
    drive, residual = _push(prior, reference, batch)
    mean = reference.add(known.precision_solve(drive), alpha=rate)
    return known.with_same_precision(mean, _scale(prior, previous, residual, rate), prior.dof + batch.n)


def noiseless_update(prior: MNIW, previous: MNIW, precision: Tensor | None, xy: Tensor, rate: float) -> MNIW:
    """M and R as in `mean_update`, from XᵀΔY of N_eff rows; U stays, and so does R if no new precision is given."""
    departure = previous.mean if prior.mean_is_zero else previous.mean - prior.mean
    drive = xy - prior.precision_times(departure.to(xy.dtype))
    known = previous if precision is None else previous.with_precision(precision)
    return known.with_mean(previous.mean.add(known.precision_solve(drive), alpha=rate))


def natural_update(
    prior: MNIW, average: Moments | None, reference: Tensor, precision: Tensor, batch: Moments, rate: float
) -> tuple[Moments, MNIW]:
    """The update written on averages of XᵀX (as R_t⁻¹), XᵀY and YᵀY, as in the paper's Algorithm 1."""
    absolute = batch.shifted(reference)
    xy = averaged(None if average is None else average.xy, absolute.xy, rate)
    yy = averaged(None if average is None else average.yy, absolute.yy, rate)
    moments = Moments(xy.new_zeros(()), xy, yy, batch.n)  # the average of XᵀX is in the precision
    return moments, prior.condition_at(precision, moments)
