"""From the tensors of a forward and backward pass to each layer's rows and their weights.

A layer may use its weights at several positions of an example: a convolution, or a linear layer with middle dimensions.
There are two ways to see that as a regression (Eschenhagen et al. 2023, for K-FAC, have both, and their names):

  expand   every position is a row: inputs x_p, outputs x_pᵀW, gradients g_p
  reduce   every example is a row: inputs are the mean of x_p, and so outputs the mean of x_pᵀW; moving that mean moves the
           outputs of all positions alike, so its gradient is the sum of g_p

Either way the moments are scaled to N_eff rows. Positions of one example say much the same, so with "expand" each counts as
a share of an observation: an example has the weight of one observation whatever its number of positions.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from bali.layer import Layer, UnsupportedLayerError
from bali.layer_update import LayerBatch
from bali.patches import Patches
from bali.settings import Sharing


def layer_batch(
    layer: Layer,
    inputs: Sequence[Tensor],  # of each call
    gradients: Sequence[Tensor],  # times root
    residual: Tensor | None,  # times root
    local_noise: Sequence[Tensor],  # rows
    root: Tensor | None,  # (n,) or (K, n), of the examples' weights
    n: int,
    sharing: Sharing,
) -> LayerBatch:
    """The rows of one layer. Those of a regression's output, whose targets are observations, are never reduced."""
    own = layer.weight.dtype  # passes may have run in a narrower one
    g = [layer.output_rows(gradient).to(own) for gradient in gradients]
    noise = [rows.to(own) for rows in local_noise]
    x: list[Tensor | Patches] = []
    if sharing == "expand" and not layer.calls_are_positions:
        x += [layer.rows_for_products(x).to(own) for x in inputs]
    else:
        rows = [layer.input_rows(x).to(own) for x in inputs]
        if layer.calls_are_positions and len(rows) > 1 and not any(part.shape[-2] % n for part in rows):
            rows, g, noise = (_joined(parts, n, layer) for parts in (rows, g, noise))
        if sharing == "reduce" and residual is None and not layer.always_expands:
            rows = [_by_example(part, n, layer).mean(-2) for part in rows]
            g = [_by_example(part, n, layer).sum(-2) for part in g]
            noise = [_by_example(part, n, layer).mean(-2) for part in noise]
        x += rows
    roots = [None if root is None else weight_of_rows(root, rows[..., 0]) for rows in g]
    noise = [rows if r is None else rows * r[..., None] for rows, r in zip(noise, roots, strict=bool(noise))]
    return LayerBatch(x, g, None if residual is None else layer.output_rows(residual), noise, roots)


def _by_example(rows: Tensor, n: int, layer: Layer) -> Tensor:
    """(..., n · positions, D) to (..., n, positions, D)."""
    if layer.members is not None:
        return rows.unsqueeze(-2)  # stacked layers have one row for an example
    if rows.shape[-2] % n:
        raise UnsupportedLayerError(
            f"layer '{layer.name}' has {rows.shape[-2]} rows for {n} examples, so they cannot be averaged by example; "
            "use sharing='expand' for it"
        )
    return rows.reshape(*rows.shape[:-2], n, -1, rows.shape[-1])


def _joined(calls: Sequence[Tensor], n: int, layer: Layer) -> list[Tensor]:
    """The rows of all calls as those of one, ordered by example; none stay none."""
    return [torch.cat([_by_example(rows, n, layer) for rows in calls], dim=-2).flatten(-3, -2)] if calls else []


def weight_of_rows(weight: Tensor, rows: Tensor) -> Tensor:
    """Weights of rows (..., m) from those of examples (..., n), each of which may have become several rows."""
    if weight.shape[-1] == rows.shape[-1]:
        return weight
    return weight.repeat_interleave(rows.shape[-1] // weight.shape[-1], dim=-1)
