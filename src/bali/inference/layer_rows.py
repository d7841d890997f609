"""From the tensors of a forward and backward pass to each layer's rows and their weights.

A layer may use its weights at several positions of an example: a convolution, or a linear layer with middle dimensions.
Every position is a row (the way that Eschenhagen et al. 2023 call "expand"): inputs x_p, outputs x_pᵀW, gradients g_p.
Moments are scaled to N_eff rows. Positions of one example say much the same, so each counts as a share of an observation:
an example has the weight of one observation whatever its number of positions.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from bali.conjugate.gram import Rows
from bali.inference.statistics import LayerBatch
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
