"""One layer's share of a step: from captured rows to the new posterior. Lines are those of `inference.py`."""

from __future__ import annotations

import functools
import operator
from dataclasses import dataclass

import torch
from torch import Tensor

from bali import linalg
from bali.gram import cross, gram, input_gram
from bali.layer import Layer
from bali.mniw import MNIW
from bali.moments import Moments, averaged
from bali.settings import Settings
from bali.targets import gradient_scale
from bali.updates import exact_input_update, mean_update, natural_update, noiseless_update

# Rounding of a Gram matrix in a narrower type may amount to this share of the prior precision, not more.
_ROUNDING_SHARE = 0.01


@dataclass
class LayerState:
    """All that inference keeps of one layer between steps."""

    layer: Layer
    prior: MNIW
    weights: Tensor  # of the next forward pass, (..., D_x, D_y)
    posterior: MNIW | None = None
    xx: Tensor | None = None  # average of XᵀX for N_eff rows
    gg: Tensor | None = None  # average of the mean squared gradient, (..., D_y)
    targets: Moments | None = None  # averages for absolute targets, natural form only
    xx_is_exact: bool = False  # xx is that of all the data, and stays

    @property
    def reference(self) -> Tensor:
        """M of the last step; before the first one, the initial weights."""
        return self.weights.to(self.prior.mean.dtype) if self.posterior is None else self.posterior.mean


@dataclass
class LayerBatch:
    """Rows of one layer in one forward and backward pass, a list entry for each call of the layer."""

    x: list[Tensor]  # inputs, without the column of ones
    gradient: list[Tensor]  # of the log-likelihood with respect to the outputs, times root
    residual: Tensor | None  # true targets minus outputs, in the output layer of a regression, times root
    local_noise: list[Tensor]  # E of the outputs XM + E, times root; empty where outputs are XW
    root: list[Tensor | None]  # square roots of the rows' weights


def update_layer(
    state: LayerState, batch: LayerBatch, settings: Settings, rate: float, *, moves_noise: bool = True
) -> LayerState:
    """The layer after one more batch; its weights are still the old ones. U may be left as it is."""
    true_targets = batch.residual is not None
    at_outputs = batch.gradient if batch.residual is None else [batch.residual]
    keep_noise = settings.target_noise or true_targets
    shifts = settings.reparam == "weight" and keep_noise  # which takes the batch's own XᵀX
    if state.posterior is not None and not state.xx_is_exact:
        state.posterior.forget_factor()  # a new one is on its way, and they are large
    if state.posterior is not None and not (moves_noise or shifts or true_targets):
        return _leave_noise(state, batch, settings, rate)
    with_xx = not state.xx_is_exact or shifts
    moments = _moments(state, batch, at_outputs, settings, with_xx=with_xx)  # targets relative to the outputs computed
    gg, scale = state.gg, None
    if not true_targets:  # line 2
        mean_square = moments.yy.diagonal(dim1=-2, dim2=-1) / _per_column(moments.n)
        gg = averaged(gg, mean_square.to(settings.algebra_dtype), rate)
        scale = _scale(gg, settings).to(moments.xy.dtype)
    # line 3: relative to the outputs of the mean
    if batch.local_noise and keep_noise:
        moments = _moments(state, batch, _with_noise(batch, at_outputs, scale), settings, with_xx=with_xx)
    else:
        moments = moments if scale is None else moments.with_target_scale(scale)
        if shifts:  # Y − XM = (Y − XW) + X(W − M) has the sampling noise in it; without, the step is taken from the mean
            moments = moments.shifted((state.weights - state.reference).to(moments.xy.dtype))
    moments = moments.scaled_to(settings.effective_size)
    return _condition(state, moments, gg, settings, rate)


def _scale(gg: Tensor, settings: Settings) -> Tensor:
    alpha = settings.step_size
    return gradient_scale(gg, alpha[:, None] if isinstance(alpha, Tensor) else alpha)


def _with_noise(batch: LayerBatch, at_outputs: list[Tensor], scale: Tensor | None) -> list[Tensor]:
    """Rows of targets relative to the outputs XM of the mean, where outputs were XM + E."""
    steps = at_outputs if scale is None else [g * scale.to(g.dtype).unsqueeze(-2) for g in at_outputs]
    return [step + noise for step, noise in zip(steps, batch.local_noise, strict=True)]


def _condition(state: LayerState, moments: Moments, gg: Tensor | None, settings: Settings, rate: float) -> LayerState:
    """Lines 4 and 5."""
    prior, xx, targets = state.prior, state.xx, None
    if not state.xx_is_exact:
        xx = averaged(xx, moments.xx.to(settings.algebra_dtype), rate)
    assert xx is not None
    if settings.update == "natural":
        wide = moments.to(settings.algebra_dtype)
        targets, posterior = natural_update(prior, state.targets, state.reference, xx, wide, rate)
    elif state.xx_is_exact:
        known = state.posterior or prior.with_precision(prior.precision + xx)
        known.covariance_as(xx.dtype)  # one inverse for the whole run
        posterior = exact_input_update(prior, state.posterior, state.reference, known, moments, rate)
    else:
        posterior = mean_update(prior, state.posterior, state.reference, xx, moments, rate)
    posterior.scale_factor  # noqa: B018 (passes the gate now, so that a failed step changes nothing)
    return LayerState(state.layer, prior, state.weights, posterior, xx, gg, targets, state.xx_is_exact)


def _leave_noise(state: LayerState, batch: LayerBatch, settings: Settings, rate: float) -> LayerState:
    """Lines 2 to 5 for all but U, and so without the product of the gradients with each other."""
    assert state.posterior is not None
    calls = list(zip(batch.x, batch.gradient, batch.root, strict=True))
    bias, wide = state.layer.has_bias, settings.algebra_dtype
    n = functools.reduce(operator.add, [_rows(x, root) for x, _, root in calls])
    squares = functools.reduce(operator.add, [torch.linalg.vecdot(g, g, dim=-2) for _, g, _ in calls])
    gg = averaged(state.gg, (squares / _per_column(n)).to(wide), rate)
    scale = _scale(gg, settings).to(batch.x[0].dtype)
    factor = settings.effective_size / n
    factor = factor[..., None, None] if isinstance(factor, Tensor) else factor
    if batch.local_noise and settings.target_noise:
        targets = _with_noise(batch, batch.gradient, scale)
        calls = [(x, y, root) for (x, _, root), y in zip(calls, targets, strict=True)]
        scale = torch.ones_like(scale)
    xy = functools.reduce(operator.add, [cross(x, y, bias=bias, root=root) for x, y, root in calls])
    xx, precision = state.xx, None
    if not state.xx_is_exact:
        new = functools.reduce(operator.add, [input_gram(x, bias=bias, root=root) for x, _, root in calls])
        xx = averaged(xx, (new * factor).to(wide), rate)
        precision = state.prior.precision + xx
    posterior = noiseless_update(state.prior, state.posterior, precision, xy * scale.unsqueeze(-2) * factor, rate)
    return LayerState(state.layer, state.prior, state.weights, posterior, xx, gg, state.targets, state.xx_is_exact)


def _rows(x: Tensor, root: Tensor | None) -> Tensor | float:
    """The number of rows, or the sum of their weights."""
    return x.shape[-2] if root is None else root.square().sum(-1)


def _per_column(n: Tensor | float) -> Tensor | float:
    return n[..., None] if isinstance(n, Tensor) else n


def _moments(state: LayerState, batch: LayerBatch, targets: list[Tensor], settings: Settings, *, with_xx: bool) -> Moments:
    """Moments of all rows, computed in the rows' own type where that is exact enough, and in the algebra's otherwise.

    Digits are short where rounding outweighs the prior: in the Gram matrix of very many effective rows, and in U as long
    as the residuals of true targets are very much larger than the noise. True targets may have very small residuals, so
    that their algebra is always done in the wider type; pseudo-targets are as noisy as their step is long.
    """
    own, wide = batch.x[0].dtype, settings.algebra_dtype
    moments = _sum(batch, targets, state.layer.has_bias, own, with_xx=with_xx)
    if own == wide:
        return moments
    true_targets = batch.residual is not None
    n = moments.n.min().item() if isinstance(moments.n, Tensor) else moments.n
    rounding = settings.effective_size / n * torch.finfo(own).eps / _ROUNDING_SHARE
    too_coarse = with_xx and not rounding * _largest(moments.xx) < state.prior.least_precision
    if true_targets and not too_coarse:
        too_coarse = not rounding * _largest(moments.yy) < state.prior.least_scale
    if too_coarse:
        return _sum(batch, targets, state.layer.has_bias, wide, with_xx=with_xx)
    return moments.to(wide) if true_targets else moments


def _largest(product: Tensor) -> float:
    return linalg.diagonal(product).max().item()


def _sum(batch: LayerBatch, targets: list[Tensor], bias: bool, dtype: torch.dtype, *, with_xx: bool) -> Moments:
    parts = []
    for x, y, root in zip(batch.x, targets, batch.root, strict=True):
        if x.dtype != dtype:
            x, y, root = x.to(dtype), y.to(dtype), None if root is None else root.to(dtype)
        if with_xx:
            parts.append(Moments.of_rooted(x, y, bias=bias, root=root))
        else:  # a 0 stands for what is not wanted
            parts.append(Moments(y.new_zeros(()), cross(x, y, bias=bias, root=root), gram(y), _rows(x, root)))
    return parts[0] if len(parts) == 1 else functools.reduce(operator.add, parts)
