"""Means and variances through a network of independent Gaussian weights, and gradients with respect to them back.

Written out, not left to autograd: they are used one row at a time, where autograd would cost more than the numbers. Symbols:
layers take their inputs divided by √(D + 1); u and s are mean and variance of such an input, m and v those of an output
before the rectifier. A weight is the pair of its means M and variances V, each (K, D + 1, H) with the bias in the last row.
The moments are those of Hernández-Lobato and Adams (2015).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

Weight = tuple[Tensor, Tensor]
_HALF_LOG_2PI = 0.5 * math.log(2.0 * math.pi)


@dataclass(frozen=True)
class LayerMoments:
    """Moments at one layer: of its scaled inputs, of its outputs, and those of the rectifier after it, if there is one."""

    u: Tensor  # (K, n, D + 1)
    second: Tensor  # u² + s
    s: Tensor | None  # None where inputs are known
    mean: Tensor  # (K, n, H)
    variance: Tensor
    rectified: Rectified | None


@dataclass(frozen=True)
class Rectified:
    """Moments of max(0, a) for a ~ N(m, v), and Φ and φ / √v at m / √v, which their derivatives are made of."""

    mean: Tensor
    variance: Tensor
    above: Tensor  # Φ
    density: Tensor  # φ / √v, the density of a at 0


def rectified_moments(m: Tensor, v: Tensor) -> Rectified:
    deviation = v.sqrt()
    ratio = m / deviation
    above = torch.special.ndtr(ratio)
    density = torch.exp(-0.5 * ratio.square() - _HALF_LOG_2PI) / deviation
    mean = torch.addcmul(m * above, v, density)
    second = torch.addcmul(v * above, m, mean)
    return Rectified(mean, torch.addcmul(second, mean, mean, value=-1.0).clamp_min(0.0), above, density)


def layer_moments(weight: Weight, u: Tensor, second: Tensor, s: Tensor | None) -> tuple[Tensor, Tensor]:
    """Mean and variance of Σ w z for independent weights and inputs."""
    mean, variance = weight
    v = torch.bmm(second, variance)
    return torch.bmm(u, mean), v if s is None else torch.baddbmm(v, s, mean.square())


def forward_moments(weights: list[Weight], u: Tensor) -> list[LayerMoments]:
    """Through all layers, for scaled inputs u (K, n, D + 1) with the bias in their last column."""
    tape: list[LayerMoments] = []
    s: Tensor | None = None
    for i, weight in enumerate(weights):
        second = u.square() if s is None else torch.addcmul(s, u, u)
        m, v = layer_moments(weight, u, second, s)
        rectified = rectified_moments(m, v) if i + 1 < len(weights) else None
        tape.append(LayerMoments(u, second, s, m, v, rectified))
        if rectified is not None:
            n_in = m.shape[-1] + 1
            u = functional.pad(rectified.mean, (0, 1), value=1.0) / math.sqrt(n_in)
            s = functional.pad(rectified.variance, (0, 1)) / n_in
    return tape


def backward_moments(
    weights: list[Weight],
    tape: list[LayerMoments],
    d_m: Tensor,
    d_v: Tensor,
    gradients: list[Weight],
) -> None:
    """Writes ∂log Z / ∂M and ∂log Z / ∂V of all layers into `gradients`, given those at the output of one row, (K, 1, 1)."""
    for i in range(len(weights) - 1, -1, -1):
        (mean, variance), layer = weights[i], tape[i]
        to_mean, to_variance = gradients[i]
        torch.mul(layer.u.mT, d_m, out=to_mean)
        torch.mul(layer.second.mT, d_v, out=to_variance)
        if layer.s is None:
            continue
        to_mean.add_(layer.s.mT * mean * d_v, alpha=2.0)
        known = tape[i - 1].rectified
        assert known is not None
        n_in = mean.shape[-2]
        d_u = torch.bmm(d_m, mean.mT) + 2.0 * layer.u * torch.bmm(d_v, variance.mT)
        d_s = torch.bmm(d_v, (variance + mean.square()).mT)
        d_mean, d_variance = d_u[..., :-1] / math.sqrt(n_in), d_s[..., :-1] / n_in
        # by d E f(a) / dm = E f'(a) and d E f(a) / dv = E f''(a) / 2
        d_m = d_mean * known.above + d_variance * (2.0 * known.mean * (1.0 - known.above))
        d_v = d_mean * (0.5 * known.density) + d_variance * (known.above - known.mean * known.density)
