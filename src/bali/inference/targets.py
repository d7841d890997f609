"""Pseudo-targets, as the moments of a regression.

The paper's targets are Y = Z + G D: outputs Z = XW (or XM + E), moved along the gradient G, each output's gradient
divided by its root mean square and multiplied by the step size α (the diagonal D). What the posterior needs of them
are the moments of (X, Y − XM), with M the previous mean. For targets at a weight matrix W these follow from XᵀX, the
weight gradient XᵀG and GᵀG alone; the rows of Y are never formed.
"""

from __future__ import annotations

import torch
from torch import Tensor

from bali.conjugate.mniw import MNIW
from bali.conjugate.rows import Tokens
from bali.conjugate.sampling import standard_normal

_TINY = torch.finfo(torch.float32).tiny


def gradient_scale(mean_square: Tensor, step_size: float | Tensor) -> Tensor:
    """The diagonal of D: α / √(mean squared gradient).

    Squares below the smallest normal float32 have lost their digits: outputs whose gradient is that small move by less
    than α, and those that received none at all do not move.
    """
    return mean_square.clamp_min(_TINY).rsqrt_().mul_(step_size)


def local_output_noise(
    posterior: MNIW, x: Tensor | Tokens, z: Tensor, noise: str, generator: torch.Generator | None
) -> Tensor:
    """E with independent rows e ~ N(0, xᵀRx · Σ): the noise that uncertain weights induce on the outputs z."""
    root = posterior.noise_root(noise, generator)
    spread = posterior.row_variance(x.to(z.dtype)).sqrt()
    return spread[..., None] * (standard_normal(z.shape, z, generator) @ root.to(z.dtype).mT)
