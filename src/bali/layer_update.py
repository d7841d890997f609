"""One layer's share of a step: from captured rows to the new posterior. Lines are those of `inference.py`."""

from __future__ import annotations

import functools
import operator
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from bali import linalg
from bali.gram import cross, gram, input_gram
from bali.layer import Layer
from bali.mniw import MNIW
from bali.moments import Moments, averaged, averaged_into
from bali.patches import Patches
from bali.settings import Settings
from bali.targets import gradient_scale
from bali.updates import exact_input_update, mean_update, natural_update, noiseless_update

# The unit of rounding of a Gram matrix's largest entry may amount to this share of the prior precision, not more. The error
# of the whole matrix was 2 to 5 such units on tables, at worst 20 (columns of few values): it stays below that precision.
_ROUNDING_SHARE = 0.04


@dataclass
class LayerState:
    """All that inference keeps of one layer between steps."""

    layer: Layer
    prior: MNIW
    weights: Tensor  # of the next forward pass, (..., D_x, D_y)
    posterior: MNIW | None = None
    precision: Tensor | None = None  # average of R₀⁻¹ + XᵀX for N_eff rows: the posterior's
    gg: Tensor | None = None  # average of the mean squared gradient, (..., D_y)
    targets: Moments | None = None  # averages for absolute targets, natural form only
    xx_is_exact: bool = False  # XᵀX is that of all the data, and the precision stays
    velocity: Tensor | None = None  # how far the mean went in the last step, where it has momentum

    @property
    def reference(self) -> Tensor:
        """M of the last step; before the first one, the initial weights."""
        return self.weights.to(self.prior.mean.dtype) if self.posterior is None else self.posterior.mean


@dataclass
class LayerBatch:
    """Rows of one layer in one forward and backward pass, a list entry for each call of the layer."""

    x: list[Tensor | Patches]  # inputs, without the column of ones
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

    def mean_square(self, n_outputs: int) -> Tensor:
        """Mean squares of the gradients, (..., D_y)."""
        squares, n = self.moments.yy if self.leaves_noise else self.moments.yy.diagonal(dim1=-2, dim2=-1), self.moments.n
        return squares[..., :n_outputs] / (n[..., None] if isinstance(n, Tensor) else n)

    def rescale_(self, n: float, scale: Tensor | None = None) -> Moments:
        """Moments of n rows like these, with a scale D (..., D_y) those of (X, GD) or (X, GD + E); these are overwritten.

        Where U stays, nobody needs those of targets with each other: a 0 stands for them.
        """
        moments = replace(self.moments, yy=self.moments.xy.new_zeros(())) if self.leaves_noise else self.moments
        if scale is None or moments.xy.shape[-1] == scale.shape[-1]:
            return moments.rescale_(n, scale)
        d, both = scale.shape[-1], moments.rescale_(n, torch.cat([scale, torch.ones_like(scale)], dim=-1))
        xy, yy = both.xy[..., :d] + both.xy[..., d:], both.yy
        if not self.leaves_noise:
            yy = yy[..., :d] + yy[..., d:]
            yy = yy[..., :d, :] + yy[..., d:, :]
        return Moments(both.xx, xy, yy, n)


def leaves_noise(state: LayerState, settings: Settings, *, moves_noise: bool, true_targets: bool) -> bool:
    """Whether U stays as it is. `moves_noise` is whether it has its turn in this step."""
    return state.posterior is not None and not (moves_noise or true_targets or _shifts(settings, true_targets=true_targets))


def forget_factors(state: LayerState, *, leaves_noise: bool) -> None:
    """Frees those factors of the old posterior that have new ones on their way: they are large."""
    if state.posterior is not None and not state.xx_is_exact:
        state.posterior.forget_precision_factor()
    if state.posterior is not None and not leaves_noise:
        state.posterior.forget_scale_factor()


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
    leaves = leaves_noise(state, settings, moves_noise=moves_noise, true_targets=true_targets)
    with_xx = not state.xx_is_exact or shifts
    if leaves:
        own = batch.x[0].dtype
        moments = _sum(batch, rows, state.layer.has_bias, own, with_xx=with_xx, with_yy=False)
    else:
        moments = _moments(state, batch, rows, settings, with_xx=with_xx)
    return LayerStatistics(moments, true_targets, leaves)


def _shifts(settings: Settings, *, true_targets: bool) -> bool:
    """Whether targets start from the outputs of the weight sample, and not from those of the mean."""
    return settings.reparam == "weight" and (settings.target_noise or true_targets)


def condition_layer(state: LayerState, statistics: LayerStatistics, settings: Settings, rate: float) -> LayerState:
    """Lines 2 to 5: the layer after a batch with these statistics, which are overwritten; weights are still the old ones."""
    true_targets, leaves = statistics.true_targets, statistics.leaves_noise
    gg, scale = gradient_average(state, statistics, settings, rate), None
    if not true_targets:
        assert gg is not None
        scale = _scale(gg, settings, state.layer.step_share).to(statistics.moments.xy.dtype)
    moments = statistics.rescale_(settings.effective_size, scale)  # line 3: relative to the outputs of the mean
    del statistics
    if _shifts(settings, true_targets=true_targets):
        # Y − XM = (Y − XW) + X(W − M) has the sampling noise in it; without, the step is taken from the mean.
        moments = moments.shifted((state.weights - state.reference).to(moments.xy.dtype))
    precision = precision_average(state, moments, rate)
    if settings.update == "mean":
        moments = moments.without_xx()  # it is large
    if leaves:
        updated = _leave_noise(state, precision, moments, gg, rate)
    else:
        updated = _condition(state, precision, moments, gg, settings, rate)
    return _with_momentum(state, updated, settings.momentum) if settings.momentum else updated


def _with_momentum(state: LayerState, updated: LayerState, momentum: float) -> LayerState:
    """The mean goes on in its last direction. U stays: it is positive definite whatever mean a step starts from.

    U_t = (1−ρ)U_{t−1} + ρ(U₀ + AᵀR₀⁻¹A + ΔYᵀΔY − ρBᵀR_tB), and ρR_t is at most (R₀⁻¹ + XᵀX)⁻¹, with which the bracket is U₀
    plus the least squares that a regression of this batch leaves.
    """
    assert updated.posterior is not None
    if state.velocity is not None:
        updated.posterior = updated.posterior.with_mean(updated.posterior.mean.add(state.velocity, alpha=momentum))
    updated.velocity = velocity(state, updated.posterior.mean)
    return updated


def velocity(state: LayerState, mean: Tensor) -> Tensor | None:
    """Of a layer whose mean is now this; the first step, from initial weights to a posterior, is no movement."""
    return None if state.posterior is None else mean - state.posterior.mean


def gradient_average(state: LayerState, statistics: LayerStatistics, settings: Settings, rate: float) -> Tensor | None:
    """Line 2: the new average of squared gradients, where targets come from gradients."""
    if statistics.true_targets:
        return state.gg
    return averaged(state.gg, statistics.mean_square(state.layer.out_features).to(settings.algebra_dtype), rate)


def precision_average(state: LayerState, moments: Moments, rate: float) -> Tensor:
    """Line 4: the new R⁻¹, from the moments of N_eff rows."""
    precision = state.precision
    if not state.xx_is_exact:
        precision = averaged_into(precision, state.prior.precision_plus(moments.xx), rate)
    assert precision is not None
    return precision


def _scale(gg: Tensor, settings: Settings, share: float) -> Tensor:
    assert not callable(settings.step_size)
    alpha = settings.step_size * share
    return gradient_scale(gg, alpha[:, None] if isinstance(alpha, Tensor) else alpha)


def _condition(
    state: LayerState, precision: Tensor, moments: Moments, gg: Tensor | None, settings: Settings, rate: float
) -> LayerState:
    """Line 5, from the moments of N_eff rows."""
    prior, targets = state.prior, None
    if settings.update == "natural":
        wide = moments.to(settings.algebra_dtype)
        targets, posterior = natural_update(prior, state.targets, state.reference, precision, wide, rate)
    elif state.xx_is_exact:
        known = state.posterior or prior.with_precision(precision)
        known.covariance_as(precision.dtype)  # one inverse for the whole run
        posterior = exact_input_update(prior, state.posterior, state.reference, known, moments, rate)
    else:
        posterior = mean_update(prior, state.posterior, state.reference, precision, moments, rate)
    posterior.scale_factor  # noqa: B018 (passes the gate now, so that a failed step changes nothing)
    return LayerState(state.layer, prior, state.weights, posterior, precision, gg, targets, state.xx_is_exact)


def _leave_noise(state: LayerState, precision: Tensor, moments: Moments, gg: Tensor | None, rate: float) -> LayerState:
    """Line 5 for all but U."""
    assert state.posterior is not None
    moved = None if state.xx_is_exact else precision
    posterior = noiseless_update(state.prior, state.posterior, moved, moments.xy, rate)
    return LayerState(state.layer, state.prior, state.weights, posterior, precision, gg, state.targets, state.xx_is_exact)


def _rows(x: Tensor | Patches, root: Tensor | None) -> Tensor | float:
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
    return linalg.diagonal(product).max().item()


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
