"""Quantiles of equal mixtures, by Newton steps that a bracket keeps from going astray."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from bali.predictive.families import Family, scipy_special

_MAX_STEPS = 200
#: The unbounded scale ends here, where exp and sigmoid are about to leave float64.
_FARTHEST = 700.0


# --- Gaussians and Student-t's, in whichever precision they are ----------------------------------------------------


def mixture_cdf(means: Tensor, scales: Tensor, y: Tensor, dof: float | None = None) -> Tensor:
    """Distribution function at y (n, D) of components with these means and scales, (S, n, D) or broadcast to it."""
    standard = (y - means) / scales
    return (torch.special.ndtr(standard) if dof is None else scipy_special("stdtr", dof, standard)).mean(0)


def mixture_quantile(means: Tensor, scales: Tensor, level: float, dof: float | None = None) -> Tensor:
    """The y (n, D) at which the distribution function has this level, to within rounding."""
    if level > 0.5:  # the lower tail of a distribution function keeps its digits, the upper one does not
        return -mixture_quantile(-means, scales, 1.0 - level, dof)
    # A mixture's quantile lies between the smallest and the largest quantile of its components.
    ends = means + _standard_quantile(level, dof) * scales
    low, high = ends.amin(0), ends.amax(0)
    eps = torch.finfo(means.dtype).eps
    # Newton's error after a step is of the order of the step's square.
    small = 0.1 * eps**0.5 * scales.mean(0) + 2 * eps * torch.maximum(low.abs(), high.abs())

    def error_and_density(y: Tensor) -> tuple[Tensor, Tensor]:
        density = _density((y - means) / scales, dof).div(scales).mean(0)
        return mixture_cdf(means, scales, y, dof) - level, density

    return bracketed_newton(error_and_density, low, high, ends.mean(0), small)


def _standard_quantile(level: float, dof: float | None) -> float:
    from scipy import special

    return float(special.ndtri(level) if dof is None else special.stdtrit(dof, level))


def _density(standard: Tensor, dof: float | None) -> Tensor:
    if dof is None:
        return standard.square().mul(-0.5).exp() / math.sqrt(2 * math.pi)
    constant = math.exp(math.lgamma((dof + 1) / 2) - math.lgamma(dof / 2)) / math.sqrt(dof * math.pi)
    return constant * (1 + standard.square() / dof) ** (-(dof + 1) / 2)


# --- any family, in float64 -----------------------------------------------------------------------------------------


def family_quantile(family: Family, level: float, tolerance: float = 1e-9) -> Tensor:
    """The smallest y (n, D) at which the mixture's distribution function is at least `level`.

    Newton ends with steps of `tolerance` times the smallest width of a component.
    """
    if family.support == "counts":
        return _count_quantile(family, level)
    to_y, log_slope = UNBOUNDED[family.support]

    def error_and_density(t: Tensor) -> tuple[Tensor, Tensor]:
        y = to_y(t)
        density = (family.log_prob(y) + log_slope(t)).exp().mean(0)
        return family.cdf(y).mean(0) - level, density

    centre, width = family.reach()
    step = width.amax(0)
    low, high = (centre - width).amin(0), (centre + width).amax(0)
    farthest = math.inf if family.support == "real" else _FARTHEST
    for end, sign in ((low, -1.0), (high, 1.0)):
        reach = step.clone()
        for _ in range(_MAX_STEPS):
            inside = sign * (family.cdf(to_y(end)).mean(0) - level) < 0  # the quantile is farther out
            if not bool((inside & (end.abs() < farthest)).any()):
                break
            end += torch.where(inside, sign * reach, 0.0)
            end.clamp_(-farthest, farthest)
            reach *= 2
    start = centre.mean(0).clamp(low, high)
    return to_y(bracketed_newton(error_and_density, low, high, start, tolerance * width.amin(0)))


#: From an unbounded t to the support: y(t) and log dy/dt.
UNBOUNDED: dict[str, tuple[Callable[[Tensor], Tensor], Callable[[Tensor], Tensor]]] = {
    "real": (lambda t: t, torch.zeros_like),
    "positive": (torch.exp, lambda t: t),
    "unit": (torch.sigmoid, lambda t: torch.nn.functional.logsigmoid(t) + torch.nn.functional.logsigmoid(-t)),
}


def _count_quantile(family: Family, level: float) -> Tensor:
    like = family.parameters()[0]
    shape = (like.shape[1], family.n_columns)
    low, high = like.new_full(shape, -1.0), like.new_full(shape, 1.0)
    while bool((short := family.cdf(high).mean(0) < level).any()) and float(high.max()) < 2.0**50:
        low, high = torch.where(short, high, low), torch.where(short, 2 * high, high)
    while bool((high - low > 1).any()):
        middle = ((low + high) / 2).floor()
        below = family.cdf(middle).mean(0) < level
        low, high = torch.where(below, middle, low), torch.where(below, high, middle)
    return high


def bracketed_newton(
    error_and_density: Callable[[Tensor], tuple[Tensor, Tensor]], low: Tensor, high: Tensor, y: Tensor, small: Tensor
) -> Tensor:
    """The zero of an increasing function with this slope, between low and high; steps below `small` are the last."""
    last = high - low
    done = last == 0
    eps = torch.finfo(y.dtype).eps
    for _ in range(_MAX_STEPS):
        if bool(done.all()):
            break
        error, density = error_and_density(y)
        low, high = torch.where(error < 0, y, low), torch.where(error < 0, high, y)
        newton = y - error / density
        # Halve the bracket where Newton leaves it, or does not halve its own steps.
        astray = ~((newton >= low) & (newton <= high)) | (2 * error.abs() > (last * density).abs())
        proposed = torch.where(astray, 0.5 * (low + high), newton)
        last = proposed - y
        y = torch.where(done, y, proposed)
        done |= (~astray & (last.abs() <= small)) | (high - low <= 2 * eps * y.abs())
    return y
