"""Lines 2 to 6 of Algorithm 1 for one layer: from the sums over a batch to the new posterior. Lines as in `step.py`.

Targets are Y = Z + G D: outputs Z = XW (or XM + E), moved along the gradient G, each output's gradient divided by its root
mean square and multiplied by the step size α (the diagonal D). What the posterior needs of them are the moments of
(X, Y − XM), with M the previous mean. They follow from XᵀX, the weight gradient XᵀG and GᵀG alone; Y is never formed.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from bali.conjugate.averages import averaged
from bali.conjugate.moments import Moments
from bali.conjugate.sampling import standard_normal
from bali.conjugate.symmetric import Symmetric, average
from bali.conjugate.updates import fixed_precision_update, mean_update
from bali.inference.settings import Settings, StepSize
from bali.inference.state import LayerState
from bali.inference.statistics import LayerStatistics, starts_at_sample

_TINY = torch.finfo(torch.float32).tiny


@dataclass(frozen=True)
class Stride:
    """How far one step goes."""

    step_size: StepSize  # α
    rate: float  # ρ: the weight of this batch in the debiased averages
    momentum: float = 0.0  # μ


def condition_layer(
    state: LayerState, statistics: LayerStatistics, settings: Settings, stride: Stride, step_share: float
) -> LayerState:
    """Lines 2 to 5: the layer after a batch with these statistics, which are overwritten; weights are still the old ones."""
    true_targets, gradient, scale = statistics.true_targets, gradient_average(state, statistics, stride.rate), None
    if not true_targets:
        assert gradient is not None
        scale = gradient_scale(gradient, stride.step_size * step_share).to(statistics.moments.xy.dtype)
    moments = statistics.rescale_(settings.effective_size, scale)  # line 3: relative to the outputs of the mean
    del statistics  # which are large, and overwritten
    if starts_at_sample(settings, true_targets=true_targets):
        # Y − XM = (Y − XW) + X(W − M) has the sampling noise in it; without, the step is taken from the mean.
        moments = moments.shifted((state.weights - state.reference).to(moments.xy.dtype))
    precision = precision_average(state, moments, stride.rate)
    moments = replace(moments, xx=None)  # it is large
    if state.fixed_precision is None:
        posterior = mean_update(state.prior, state.posterior, state.reference, precision, moments, stride.rate)
    else:
        precision.keep_inverse()  # one inverse for the whole run
        posterior = fixed_precision_update(state.prior, state.posterior, state.reference, precision, moments, stride.rate)
    posterior.scale_factor  # noqa: B018 (passes the gate now, so that a failed step changes nothing)
    if stride.momentum and state.velocity is not None:
        # The mean goes on in its last direction. U stays: it is positive definite whatever mean a step starts from, since
        # U_t = (1−ρ)U_{t−1} + ρ(U₀ + AᵀR₀⁻¹A + ΔYᵀΔY − ρBᵀR_tB), and ρR_t is at most (R₀⁻¹ + XᵀX)⁻¹, with which the bracket
        # is U₀ plus the least squares that a regression of this batch leaves.
        posterior = posterior.with_mean(posterior.mean.add(state.velocity, alpha=stride.momentum))
    velocity = moved(state, posterior.mean) if stride.momentum else None
    return replace(state, posterior=posterior, mean_squared_gradient=gradient, velocity=velocity)


def moved(state: LayerState, mean: Tensor) -> Tensor | None:
    """How far a layer went whose mean is now this; the first step, from initial weights to a posterior, is no movement."""
    return None if state.posterior is None else mean - state.posterior.mean


def gradient_average(state: LayerState, statistics: LayerStatistics, rate: float) -> Tensor | None:
    """Line 2: the new average of squared gradients, where targets come from gradients."""
    if statistics.true_targets:
        return state.mean_squared_gradient
    wide = state.prior.mean.dtype
    return averaged(state.mean_squared_gradient, statistics.mean_squared_gradient(state.weights.shape[-1]).to(wide), rate)


def precision_average(state: LayerState, moments: Moments, rate: float) -> Symmetric:
    """Line 4: the new R⁻¹, from the moments of N_eff rows."""
    if state.fixed_precision is not None:
        return state.fixed_precision
    assert moments.xx is not None
    return average(state.precision, state.prior.precision.plus(moments.xx), rate)


def gradient_scale(mean_square: Tensor, step_size: StepSize) -> Tensor:
    """Line 2: the diagonal of D, α / √(mean squared gradient), (..., D_y).

    Squares below the smallest normal float32 have lost their digits: outputs whose gradient is that small move by less
    than α, and those that received none at all do not move.
    """
    alpha = step_size[:, None] if isinstance(step_size, Tensor) else step_size
    return mean_square.clamp_min(_TINY).rsqrt_().mul_(alpha)


def draw_weights(state: LayerState, settings: Settings, generator: torch.Generator) -> Tensor:
    """Line 6: the weights of the next forward pass."""
    posterior = state.posterior
    assert posterior is not None
    if settings.reparam != "weight":
        return posterior.mean.to(state.weights.dtype)
    normal = standard_normal(posterior.mean.shape, state.weights, generator)
    return posterior.weights_from(normal, posterior.noise_mode_factor())


def forget_factors(state: LayerState) -> None:
    """Frees those factors of the old posterior that have new ones on their way: they are large."""
    if state.posterior is not None:
        if state.fixed_precision is None:
            state.posterior.precision.forget_factor()
        state.posterior.forget_scale_factor()
