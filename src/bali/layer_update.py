"""One layer's share of a step: from captured rows to the new posterior. Lines are those of `inference.py`."""

from __future__ import annotations

import functools
import operator
from dataclasses import dataclass, replace

import torch
from torch import Tensor

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


@dataclass
class LayerStatistics:
    """All that a layer's posterior needs of a batch, as sums over rows: those of disjoint rows add.

    The moments are those of (X, G) with the gradients G, or of (X, ΔY) where targets are observations. With local noise E
    that goes into pseudo-targets they are those of (X, (G, E)), side by side: how far gradients count is known only when
    all rows have been summed.
    """

    moments: Moments
    true_targets: bool
    leaves_noise: bool  # U stays as it is; then yy is only the diagonal

    def __add__(self, other: LayerStatistics) -> LayerStatistics:
        return LayerStatistics(self.moments + other.moments, self.true_targets, self.leaves_noise)

    def scaled_to(self, n: float) -> LayerStatistics:
        """The statistics that n rows like these would have."""
        if self.leaves_noise and isinstance(self.moments.n, Tensor):
            scaled = replace(self.moments, yy=self.moments.yy.unsqueeze(-1)).scaled_to(n)
            return replace(self, moments=replace(scaled, yy=scaled.yy.squeeze(-1)))
        return LayerStatistics(self.moments.scaled_to(n), self.true_targets, self.leaves_noise)


def forget_factor(state: LayerState) -> None:
    """Frees the factor of the old precision: a new one is on its way, and they are large."""
    if state.posterior is not None and not state.xx_is_exact:
        state.posterior.forget_factor()


def layer_statistics(
    state: LayerState, batch: LayerBatch, settings: Settings, *, moves_noise: bool = True
) -> LayerStatistics:
    """What the rows of a batch contribute to lines 2 to 5. `moves_noise` is whether U has its turn in this step."""
    true_targets = batch.residual is not None
    if batch.residual is not None:
        rows = [batch.residual]
        if batch.local_noise:  # outputs were XM + E: relative to XM, targets are as much further away
            rows = [residual + noise for residual, noise in zip(rows, batch.local_noise, strict=True)]
    else:
        rows = batch.gradient
        if batch.local_noise and settings.target_noise:
            rows = [torch.cat([g, noise], dim=-1) for g, noise in zip(rows, batch.local_noise, strict=True)]
    shifts = _shifts(settings, true_targets=true_targets)  # which takes the batch's own XᵀX
    leaves_noise = state.posterior is not None and not (moves_noise or shifts or true_targets)
    with_xx = not state.xx_is_exact or shifts
    if leaves_noise:
        own = batch.x[0].dtype
        moments = _sum(batch, rows, state.layer.has_bias, own, with_xx=with_xx, with_yy=False)
    else:
        moments = _moments(state, batch, rows, settings, with_xx=with_xx)
    return LayerStatistics(moments, true_targets, leaves_noise)


def _shifts(settings: Settings, *, true_targets: bool) -> bool:
    """Whether targets start from the outputs of the weight sample, and not from those of the mean."""
    return settings.reparam == "weight" and (settings.target_noise or true_targets)


def condition_layer(state: LayerState, statistics: LayerStatistics, settings: Settings, rate: float) -> LayerState:
    """Lines 2 to 5: the layer after a batch with these statistics; its weights are still the old ones."""
    statistics = statistics.scaled_to(settings.effective_size)
    gg, xx = new_averages(state, statistics, settings, rate)
    moments = statistics.moments
    if not statistics.true_targets:  # line 3: relative to the outputs of the mean
        assert gg is not None
        scale = _scale(gg, settings, state.layer.step_share).to(moments.xy.dtype)
        moments = _at_targets(moments, scale, leaves_noise=statistics.leaves_noise)
    if statistics.leaves_noise:
        return _leave_noise(state, moments, xx, gg, rate)
    if _shifts(settings, true_targets=statistics.true_targets):
        # Y − XM = (Y − XW) + X(W − M) has the sampling noise in it; without, the step is taken from the mean.
        moments = moments.shifted((state.weights - state.reference).to(moments.xy.dtype))
    return _condition(state, moments, xx, gg, settings, rate)


def new_averages(
    state: LayerState, statistics: LayerStatistics, settings: Settings, rate: float
) -> tuple[Tensor | None, Tensor]:
    """Averages of the squared gradients (line 2) and of XᵀX (line 4), from statistics scaled to N_eff rows."""
    moments, gg, xx = statistics.moments, state.gg, state.xx
    if not statistics.true_targets:
        squares = moments.yy if statistics.leaves_noise else moments.yy.diagonal(dim1=-2, dim2=-1)
        if squares.shape[-1] > state.layer.out_features:
            squares = squares[..., : state.layer.out_features]
        mean_square = squares / settings.effective_size
        gg = averaged(gg, mean_square.to(settings.algebra_dtype), rate)
    if not state.xx_is_exact:
        xx = averaged(xx, moments.xx.to(settings.algebra_dtype), rate)
    assert xx is not None
    return gg, xx


def _at_targets(moments: Moments, scale: Tensor, *, leaves_noise: bool) -> Moments:
    """From moments of (X, G), or of (X, (G, E)), to those of (X, GD) or (X, GD + E)."""
    d, row = scale.shape[-1], scale.unsqueeze(-2)
    if moments.xy.shape[-1] == d:
        if leaves_noise:
            return replace(moments, xy=moments.xy * row)
        return moments.with_target_scale(scale)
    xy = moments.xy[..., :d] * row + moments.xy[..., d:]
    if leaves_noise:
        return replace(moments, xy=xy)
    cross = moments.yy[..., :d, d:] * scale.unsqueeze(-1)
    steps = moments.yy[..., :d, :d] * row * scale.unsqueeze(-1)
    return Moments(moments.xx, xy, steps + cross + cross.mT + moments.yy[..., d:, d:], moments.n)


def _scale(gg: Tensor, settings: Settings, share: float) -> Tensor:
    alpha = settings.step_size * share
    return gradient_scale(gg, alpha[:, None] if isinstance(alpha, Tensor) else alpha)


def _condition(
    state: LayerState, moments: Moments, xx: Tensor, gg: Tensor | None, settings: Settings, rate: float
) -> LayerState:
    """Line 5, from the moments of N_eff rows."""
    prior, targets = state.prior, None
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


def _leave_noise(state: LayerState, moments: Moments, xx: Tensor, gg: Tensor | None, rate: float) -> LayerState:
    """Line 5 for all but U."""
    assert state.posterior is not None
    precision = None if state.xx_is_exact else state.prior.precision + xx
    posterior = noiseless_update(state.prior, state.posterior, precision, moments.xy, rate)
    return LayerState(state.layer, state.prior, state.weights, posterior, xx, gg, state.targets, state.xx_is_exact)


def _rows(x: Tensor, root: Tensor | None) -> Tensor | float:
    """The number of rows, or the sum of their weights."""
    return x.shape[-2] if root is None else root.square().sum(-1)


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
    if n == 0:
        return moments.to(wide) if true_targets else moments
    rounding = settings.effective_size / n * torch.finfo(own).eps / _ROUNDING_SHARE
    too_coarse = with_xx and not rounding * _largest(moments.xx) < state.prior.least_precision
    if true_targets and not too_coarse:
        too_coarse = not rounding * _largest(moments.yy) < state.prior.least_scale
    if too_coarse:
        return _sum(batch, targets, state.layer.has_bias, wide, with_xx=with_xx)
    return moments.to(wide) if true_targets else moments


def _largest(product: Tensor) -> float:
    return product.diagonal(dim1=-2, dim2=-1).max().item()


def _sum(
    batch: LayerBatch, targets: list[Tensor], bias: bool, dtype: torch.dtype, *, with_xx: bool, with_yy: bool = True
) -> Moments:
    """Moments of all calls. What is not wanted is 0, in place of XᵀX, or the diagonal only, in place of YᵀY."""
    parts = []
    for x, y, root in zip(batch.x, targets, batch.root, strict=True):
        if x.dtype != dtype:
            x, y, root = x.to(dtype), y.to(dtype), None if root is None else root.to(dtype)
        if with_xx and with_yy:
            parts.append(Moments.of_rooted(x, y, bias=bias, root=root))
        else:
            xx = input_gram(x, bias=bias, root=root) if with_xx else y.new_zeros(())
            yy = gram(y) if with_yy else torch.linalg.vecdot(y, y, dim=-2)
            parts.append(Moments(xx, cross(x, y, bias=bias, root=root), yy, _rows(x, root)))
    return parts[0] if len(parts) == 1 else functools.reduce(operator.add, parts)
