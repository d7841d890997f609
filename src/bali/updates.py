"""The posterior after one more mini-batch: the two forms of the paper, and two that save work.

All take the moments of a batch of (X, ΔY), scaled to N_eff rows, where ΔY = Y − X·reference are the targets
relative to the previous mean, and the debiased rate ρ of the moving average. Solves run in the type of the moments.
"""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor

from bali import linalg
from bali.mniw import MNIW
from bali.moments import Moments, averaged


class _Push(NamedTuple):
    """What a batch asks of M and U, at the previous mean."""

    drive: Tensor  # B = XᵀΔY − R₀⁻¹A, where A = M_{t−1} − M₀
    residual: Tensor  # (1−ρ) U_{t−1} + ρ (U₀ + AᵀR₀⁻¹A + ΔYᵀΔY)


def _push(prior: MNIW, previous: MNIW | None, reference: Tensor, batch: Moments, rate: float) -> _Push:
    departure = reference if prior.mean_is_zero else reference - prior.mean
    departure = departure.to(batch.xy.dtype)
    pull = prior.precision_times(departure)
    fresh = prior.scale + (departure.mT @ pull).add_(batch.yy)
    return _Push(batch.xy - pull, fresh if previous is None else previous.scale.lerp(fresh, rate))


def mean_update(
    prior: MNIW, previous: MNIW | None, reference: Tensor, xx_average: Tensor, batch: Moments, rate: float
) -> MNIW:
    """The update written on the distribution's own parameters (the paper's appendix on mean updates, extended to U).

    With A = M_{t−1} − M₀ and B = XᵀΔY − R₀⁻¹A,

        M_t = M_{t−1} + ρ R_t B
        U_t = (1−ρ) U_{t−1} + ρ (U₀ + AᵀR₀⁻¹A + ΔYᵀΔY) − ρ² BᵀR_t B

    U_t is the minimum of the averaged quadratic objective, expanded about M_{t−1}: it adds and subtracts squares of
    residuals, where U₀ + YᵀY − MᵀR⁻¹M is a small difference of large numbers.
    """
    posterior = prior.with_precision(prior.precision + xx_average)
    push = _push(prior, previous, reference, batch, rate)
    factor = posterior.precision_factor_as(push.drive.dtype)
    half = linalg.half_solve(factor, push.drive)
    mean = reference.add(linalg.transposed_half_solve(factor, half), alpha=rate)
    scale = push.residual.sub(half.mT @ half, alpha=rate**2)
    return posterior.with_same_precision(mean, scale, prior.dof + batch.n)


def exact_input_update(
    prior: MNIW, previous: MNIW | None, reference: Tensor, known: MNIW, batch: Moments, rate: float
) -> MNIW:
    """The update with the precision of `known`: that of all the data, not the average over the same batches.

    M moves as in `mean_update`. U is measured about the previous mean: that needs no subtraction, so it is positive
    definite with any precision, and it is larger than the minimum that `mean_update` finds by what one step explains.
    """
    push = _push(prior, previous, reference, batch, rate)
    mean = reference.add(known.precision_solve(push.drive), alpha=rate)
    return known.with_same_precision(mean, push.residual, prior.dof + batch.n)


def noiseless_update(prior: MNIW, previous: MNIW, precision: Tensor | None, xy: Tensor, rate: float) -> MNIW:
    """M and R as in `mean_update`, from XᵀΔY of N_eff rows; U stays, and so does R if no new precision is given."""
    departure = previous.mean if prior.mean_is_zero else previous.mean - prior.mean
    drive = xy - prior.precision_times(departure.to(xy.dtype))
    known = previous if precision is None else previous.with_precision(precision)
    return known.with_mean(previous.mean.add(known.precision_solve(drive), alpha=rate))


def natural_update(
    prior: MNIW, average: Moments | None, reference: Tensor, xx_average: Tensor, batch: Moments, rate: float
) -> tuple[Moments, MNIW]:
    """The update written on averages of XᵀX, XᵀY and YᵀY, as in the paper's Algorithm 1."""
    absolute = batch.shifted(reference)
    xy = averaged(None if average is None else average.xy, absolute.xy, rate)
    yy = averaged(None if average is None else average.yy, absolute.yy, rate)
    moments = Moments(xx_average, xy, yy, batch.n)
    return moments, prior.condition(moments)
