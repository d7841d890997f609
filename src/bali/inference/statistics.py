"""From the tensors of a forward and backward pass to each layer's rows and their weights, and from rows to sums.

A layer may use its weights at several positions of an example: a convolution, or a linear layer with middle dimensions.
Every position is a row (the way that Eschenhagen et al. 2023 call "expand"): inputs x_p, outputs x_pᵀW, gradients g_p.
Moments are scaled to N_eff rows. Positions of one example say much the same, so each counts as a share of an observation:
an example has the weight of one observation whatever its number of positions. What the rows of a batch say about one layer
are sums over rows: those of disjoint rows add.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from bali.conjugate.moments import Moments, Rows
from bali.inference.settings import Settings
from bali.inference.state import LayerState
from bali.layers.layer import Layer


def layer_batch(
    layer: Layer,
    inputs: Sequence[Tensor],  # of each call
    gradients: Sequence[Tensor],  # times root
    residual: Tensor | None,  # times root
    local_noise: Sequence[Tensor],  # rows
    root: Tensor | None,  # (n,) or (K, n), of the examples' weights
    n: int,
) -> LayerBatch:
    """The rows of one layer."""
    own = layer.weight.dtype  # passes may have run in a narrower one
    g = [layer.output_rows(gradient).to(own) for gradient in gradients]
    noise = [rows.to(own) for rows in local_noise]
    x: list[Rows] = [layer.rows_for_products(x).to(own) for x in inputs]
    if layer.calls_are_positions and len(x) > 1 and not any(part.shape[-2] % n for part in x):
        whole = [rows for rows in x if isinstance(rows, Tensor)]  # as those of recurrent layers are
        x, g, noise = [_joined(whole, n)], [_joined(g, n)], [_joined(noise, n)] if noise else []
    roots = [None if root is None else weight_of_rows(root, rows[..., 0]) for rows in g]
    noise = [rows if r is None else rows * r[..., None] for rows, r in zip(noise, roots, strict=bool(noise))]
    return LayerBatch(x, g, None if residual is None else layer.output_rows(residual), noise, roots, layer.has_bias)


def _joined(calls: Sequence[Tensor], n: int) -> Tensor:
    """The rows of all calls as those of one, ordered by example: one product instead of many."""
    by_example = [rows.reshape(*rows.shape[:-2], n, -1, rows.shape[-1]) for rows in calls]
    return torch.cat(by_example, dim=-2).flatten(-3, -2)


def weight_of_rows(weight: Tensor, rows: Tensor) -> Tensor:
    """Weights of rows (..., m) from those of examples (..., n), each of which may have become several rows."""
    if weight.shape[-1] == rows.shape[-1]:
        return weight
    return weight.repeat_interleave(rows.shape[-1] // weight.shape[-1], dim=-1)


# The unit of rounding of a Gram matrix's largest entry may amount to this share of the prior precision, not more. The error
# of the whole matrix was 2 to 5 such units on tables, at worst 20 (columns of few values): it stays below that precision.
_ROUNDING_SHARE = 0.04


@dataclass
class LayerBatch:
    """Rows of one layer in one forward and backward pass, a list entry for each call of the layer."""

    x: list[Rows]  # inputs, without the column of ones
    gradient: list[Tensor]  # of the log-likelihood with respect to the outputs, times root
    residual: Tensor | None  # true targets minus outputs, in the output layer of a regression, times root
    local_noise: list[Tensor]  # E of the outputs XM + E, times root; empty where outputs are XW
    root: list[Tensor | None]  # square roots of the rows' weights
    has_bias: bool


@dataclass(frozen=True)
class LayerStatistics:
    """The moments of (X, G) with the gradients G, or of (X, ΔY) where targets are observations.

    With local noise E that goes into pseudo-targets they are those of (X, (G, E)), side by side: how far gradients count is
    known only when all rows have been summed.
    """

    moments: Moments
    true_targets: bool

    def __add__(self, other: LayerStatistics) -> LayerStatistics:
        return LayerStatistics(self.moments + other.moments, self.true_targets)

    def mean_squared_gradient(self, n_outputs: int) -> Tensor:
        """(..., D_y)"""
        squares, n = self.moments.yy.diagonal(dim1=-2, dim2=-1), self.moments.n
        return squares[..., :n_outputs] / (n[..., None] if isinstance(n, Tensor) else n)

    def rescale_(self, n: float, scale: Tensor | None = None) -> Moments:
        """Moments of n rows like these, with a scale D (..., D_y) those of (X, GD) or (X, GD + E); these are overwritten."""
        if scale is None or self.moments.xy.shape[-1] == scale.shape[-1]:
            return self.moments.rescale_(n, scale)
        d, both = scale.shape[-1], self.moments.rescale_(n, torch.cat([scale, torch.ones_like(scale)], dim=-1))
        yy = both.yy[..., :d] + both.yy[..., d:]
        return Moments(both.xx, both.xy[..., :d] + both.xy[..., d:], yy[..., :d, :] + yy[..., d:, :], n)


def starts_at_sample(settings: Settings, *, true_targets: bool) -> bool:
    """Whether targets start from the outputs of the weight sample, and not from those of the mean."""
    return settings.reparam == "weight" and (settings.target_noise or true_targets)


def layer_statistics(state: LayerState, batch: LayerBatch, settings: Settings) -> LayerStatistics:
    """What the rows of a batch contribute to lines 2 to 5."""
    true_targets = batch.residual is not None
    if batch.residual is not None:
        rows = [batch.residual]
        if batch.local_noise:  # outputs were XM + E: relative to XM, targets are as much further away
            rows = [residual + noise for residual, noise in zip(rows, batch.local_noise, strict=True)]
    else:
        rows = batch.gradient
        if batch.local_noise and settings.target_noise:
            rows = [torch.cat([g, noise], dim=-1) for g, noise in zip(rows, batch.local_noise, strict=True)]
    with_xx = state.fixed_precision is None or starts_at_sample(settings, true_targets=true_targets)
    return LayerStatistics(_moments(state, batch, rows, settings, with_xx=with_xx), true_targets)


def _moments(state: LayerState, batch: LayerBatch, targets: list[Tensor], settings: Settings, *, with_xx: bool) -> Moments:
    """Moments of all rows, computed in the rows' own type where that is exact enough, and in the algebra's otherwise.

    Digits are short where rounding outweighs the prior: in the Gram matrix of very many effective rows, and in U as long
    as the residuals of true targets are very much larger than the noise. True targets may have very small residuals, so
    that their algebra is always done in the wider type; pseudo-targets are as noisy as their step is long.
    """
    own, wide = batch.x[0].dtype, state.prior.mean.dtype
    moments = _sum(batch, targets, own, with_xx=with_xx)
    if own == wide:
        return moments
    true_targets = batch.residual is not None
    n = moments.n.min().item() if isinstance(moments.n, Tensor) else moments.n
    if n == 0:
        return moments.to(wide) if true_targets else moments
    rounding = settings.effective_size / n * torch.finfo(own).eps / _ROUNDING_SHARE
    too_coarse = False
    if moments.xx is not None:
        too_coarse = not rounding * moments.xx.diagonal().max().item() < state.prior.least_precision
    if true_targets and not too_coarse:
        too_coarse = not rounding * moments.yy.diagonal(dim1=-2, dim2=-1).max().item() < state.prior.least_scale
    if too_coarse:
        return _sum(batch, targets, wide, with_xx=with_xx)
    return moments.to(wide) if true_targets else moments


def _sum(batch: LayerBatch, targets: list[Tensor], dtype: torch.dtype, *, with_xx: bool) -> Moments:
    """Moments of all calls."""
    parts = []
    for x, y, root in zip(batch.x, targets, batch.root, strict=True):
        if x.dtype != dtype:
            x, y, root = x.to(dtype), y.to(dtype), None if root is None else root.to(dtype)
        parts.append(Moments.of_rooted(x, y, bias=batch.has_bias, root=root, with_xx=with_xx))
    return functools.reduce(operator.add, parts)
