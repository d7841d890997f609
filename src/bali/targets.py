"""Pseudo-targets, as the moments of a regression.

The paper's targets are Y = Z + G D: outputs Z = XW (or XM + E), moved along the gradient G, each output's gradient
divided by its root mean square and multiplied by the step size α (the diagonal D). What the posterior needs of them
are the moments of (X, Y − XM), with M the previous mean. For targets at a weight matrix W these follow from XᵀX, the
weight gradient XᵀG and GᵀG alone; the rows of Y are never formed.
"""

from __future__ import annotations

import torch
from torch import Tensor

from bali.mniw import MNIW
from bali.moments import Moments
from bali.sampling import standard_normal


def gradient_scale(mean_square: Tensor, step_size: float | Tensor) -> Tensor:
    """The diagonal of D: α / √(mean squared gradient), and 0 for outputs that received no gradient at all."""
    # The smallest normal float32: below it, squares have lost their digits and the direction is noise.
    moved = mean_square > torch.finfo(torch.float32).tiny
    return torch.where(moved, step_size * mean_square.clamp_min(torch.finfo(torch.float32).tiny).rsqrt(), 0.0)


def relative_to_mean(at_weights: Moments, weights: Tensor, mean: Tensor, *, keep_noise: bool) -> Moments:
    """Moments of (X, Y − XM) from those of (X, Y − XW).

    With `keep_noise` targets lie at Y, and Y − XM = (Y − XW) + X(W − M) has the sampling noise E = X(W − M) in it.
    Without, the step that was found at W is taken from the mean: Y − XM is what Y − XW was.
    """
    return at_weights.shifted(weights - mean) if keep_noise else at_weights


def local_output_noise(posterior: MNIW, x: Tensor, z: Tensor, noise: str, generator: torch.Generator | None) -> Tensor:
    """E with independent rows e ~ N(0, xᵀRx · Σ): the noise that uncertain weights induce on the outputs z."""
    root = posterior.noise_root(noise, generator)
    spread = posterior.to(z.dtype).row_variance(x).sqrt()
    return spread[..., None] * (standard_normal(z.shape, z, generator) @ root.to(z.dtype).mT)
