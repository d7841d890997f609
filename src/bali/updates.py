"""The posterior after one more mini-batch, in the two forms of the paper.

Both take the moments of a batch of (X, ΔY), scaled to N_eff rows, where ΔY = Y − X·reference are the targets
relative to the previous mean, and the debiased rate ρ of the moving average. They give the same distribution.
"""

from __future__ import annotations

from dataclasses import replace

from torch import Tensor

from bali import linalg
from bali.mniw import MNIW
from bali.moments import Moments, averaged


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
    posterior = replace(prior, precision=prior.precision + xx_average)
    departure = reference - prior.mean
    pull = prior.precision_times(departure)
    drive = batch.xy - pull
    half = linalg.half_solve(posterior.precision_factor, drive)
    mean = reference + rate * linalg.transposed_half_solve(posterior.precision_factor, half)
    fresh = prior.scale + linalg.symmetric(departure.mT @ pull + batch.yy)
    kept = fresh if previous is None else previous.scale.lerp(fresh, rate)
    return posterior.with_same_precision(mean, kept - rate**2 * (half.mT @ half), prior.dof + batch.n)


def natural_update(
    prior: MNIW, average: Moments | None, reference: Tensor, xx_average: Tensor, batch: Moments, rate: float
) -> tuple[Moments, MNIW]:
    """The update written on averages of XᵀX, XᵀY and YᵀY, as in the paper's Algorithm 1."""
    absolute = batch.shifted(reference)
    xy = averaged(None if average is None else average.xy, absolute.xy, rate)
    yy = averaged(None if average is None else average.yy, absolute.yy, rate)
    moments = Moments(xx_average, xy, yy, batch.n)
    return moments, prior.condition(moments)
