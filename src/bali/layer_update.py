"""One layer's share of a step: from captured rows to the new posterior. Lines are those of `inference.py`."""

from __future__ import annotations

import functools
import operator
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from bali.layers import LinearLayer
from bali.mniw import MNIW
from bali.moments import Moments, averaged
from bali.settings import Settings
from bali.targets import gradient_scale, relative_to_mean
from bali.updates import mean_update, natural_update

# Rounding of a Gram matrix in a narrower type may amount to this share of the prior precision, not more.
_ROUNDING_SHARE = 0.01


@dataclass(frozen=True)
class LayerState:
    """All that inference keeps of one layer between steps."""

    layer: LinearLayer
    prior: MNIW
    weights: Tensor  # of the next forward pass, (..., D_x, D_y)
    posterior: MNIW | None = None
    xx: Tensor | None = None  # average of XᵀX for N_eff rows
    gg: Tensor | None = None  # average of the mean squared gradient, (..., D_y)
    targets: Moments | None = None  # averages for absolute targets, natural form only

    @property
    def reference(self) -> Tensor:
        """M of the last step; before the first one, the initial weights."""
        return self.weights if self.posterior is None else self.posterior.mean


@dataclass(frozen=True)
class LayerBatch:
    """Rows of one layer in one forward and backward pass, a list entry for each call of the layer."""

    x: list[Tensor]  # inputs, without the column of ones
    gradient: list[Tensor]  # of the log-likelihood with respect to the outputs, times root
    residual: Tensor | None  # true targets minus outputs, in the output layer of a regression, times root
    local_noise: list[Tensor]  # E of the outputs XM + E, times root; empty where outputs are XW
    root: list[Tensor | None]  # square roots of the rows' weights


def update_layer(state: LayerState, batch: LayerBatch, settings: Settings, rate: float) -> LayerState:
    """The layer after one more batch; its weights are still the old ones."""
    true_targets = batch.residual is not None
    at_outputs = batch.gradient if batch.residual is None else [batch.residual]
    moments = _moments(state, batch, at_outputs, settings)  # targets relative to the outputs that were computed
    gg, scale = state.gg, None
    if not true_targets:  # line 2
        gg = averaged(gg, moments.scaled_to(1.0).yy.diagonal(dim1=-2, dim2=-1), rate)
        alpha = settings.step_size
        scale = gradient_scale(gg, alpha[:, None] if isinstance(alpha, Tensor) else alpha)
    # line 3: relative to the outputs of the mean
    keep_noise = settings.target_noise or true_targets
    if batch.local_noise and keep_noise:
        steps = at_outputs if scale is None else [g * scale.to(g.dtype).unsqueeze(-2) for g in at_outputs]
        rows = [step + noise for step, noise in zip(steps, batch.local_noise, strict=True)]
        moments = _moments(state, batch, rows, settings)
    else:
        moments = moments if scale is None else moments.with_target_scale(scale)
        if settings.reparam == "weight":
            moments = relative_to_mean(moments, state.weights, state.reference, keep_noise=keep_noise)
    moments = moments.scaled_to(settings.effective_size)
    xx = averaged(state.xx, moments.xx, rate)  # line 4
    targets = None
    if settings.update == "mean":  # line 5
        posterior = mean_update(state.prior, state.posterior, state.reference, xx, moments, rate)
    else:
        targets, posterior = natural_update(state.prior, state.targets, state.reference, xx, moments, rate)
    posterior.scale_factor  # noqa: B018 (passes the gate now, so that a failed step changes nothing)
    return replace(state, posterior=posterior, xx=xx, gg=gg, targets=targets)


def _moments(state: LayerState, batch: LayerBatch, targets: list[Tensor], settings: Settings) -> Moments:
    """Moments of all rows, computed in the rows' own type where that is exact enough, and in the algebra's otherwise.

    Digits are short where rounding outweighs the prior: in the Gram matrix of very many effective rows, and in U as long
    as the residuals of true targets are very much larger than the noise.
    """
    own, wide = batch.x[0].dtype, settings.algebra_dtype
    moments = _sum(batch, targets, state.layer.has_bias, own).to(wide)
    if own == wide:
        return moments
    rounded = moments.scaled_to(settings.effective_size)
    products = [(rounded.xx, state.prior.precision)]
    if batch.residual is not None:
        products.append((rounded.yy, state.prior.scale))
    for product, prior in products:
        largest, least = product.diagonal(dim1=-2, dim2=-1).max(), prior.diagonal(dim1=-2, dim2=-1).min()
        if float(torch.finfo(own).eps * largest) > _ROUNDING_SHARE * float(least):
            return _sum(batch, targets, state.layer.has_bias, wide)
    return moments


def _sum(batch: LayerBatch, targets: list[Tensor], bias: bool, dtype: torch.dtype) -> Moments:
    roots = [None if root is None else root.to(dtype) for root in batch.root]
    calls = zip(batch.x, targets, roots, strict=True)
    parts = [Moments.of_rooted(x.to(dtype), y.to(dtype), bias=bias, root=root) for x, y, root in calls]
    return functools.reduce(operator.add, parts)
