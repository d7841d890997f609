"""Quantiles of equal mixtures of Gaussians or Student-t's, by Newton steps that a bracket keeps from going astray."""

from __future__ import annotations

import math

import torch
from scipy import special
from torch import Tensor

_MAX_STEPS = 200


def mixture_cdf(means: Tensor, scales: Tensor, y: Tensor, dof: float | None = None) -> Tensor:
    """Distribution function at y (n, D) of components with these means and scales, (S, n, D) or broadcast to it."""
    standard = (y - means) / scales
    if dof is None:
        return torch.special.ndtr(standard).mean(0)
    cdf = special.stdtr(dof, standard.cpu().numpy())
    return torch.as_tensor(cdf, dtype=standard.dtype, device=standard.device).mean(0)


def mixture_quantile(means: Tensor, scales: Tensor, level: float, dof: float | None = None) -> Tensor:
    """The y (n, D) at which the distribution function has this level, to within rounding."""
    if level > 0.5:  # the lower tail of a distribution function keeps its digits, the upper one does not
        return -mixture_quantile(-means, scales, 1.0 - level, dof)
    # A mixture's quantile lies between the smallest and the largest quantile of its components.
    ends = means + _standard_quantile(level, dof) * scales
    low, high, y = ends.amin(0), ends.amax(0), ends.mean(0)
    last = high - low
    done = last == 0
    eps = torch.finfo(y.dtype).eps
    # Newton's error after a step is of the order of the step's square.
    small = 0.1 * eps**0.5 * scales.mean(0) + 2 * eps * torch.maximum(low.abs(), high.abs())
    for _ in range(_MAX_STEPS):
        if bool(done.all()):
            break
        error = mixture_cdf(means, scales, y, dof) - level
        density = _density((y - means) / scales, dof).div(scales).mean(0)
        low, high = torch.where(error < 0, y, low), torch.where(error < 0, high, y)
        newton = y - error / density
        # Halve the bracket where Newton leaves it, or does not halve its own steps.
        astray = ~((newton >= low) & (newton <= high)) | (2 * error.abs() > (last * density).abs())
        proposed = torch.where(astray, 0.5 * (low + high), newton)
        last = proposed - y
        y = torch.where(done, y, proposed)
        done |= (~astray & (last.abs() <= small)) | (high - low <= 2 * eps * y.abs())
    return y


def _standard_quantile(level: float, dof: float | None) -> float:
    return float(special.ndtri(level) if dof is None else special.stdtrit(dof, level))


def _density(standard: Tensor, dof: float | None) -> Tensor:
    if dof is None:
        return standard.square().mul(-0.5).exp() / math.sqrt(2 * math.pi)
    constant = math.exp(math.lgamma((dof + 1) / 2) - math.lgamma(dof / 2)) / math.sqrt(dof * math.pi)
    return constant * (1 + standard.square() / dof) ** (-(dof + 1) / 2)
