"""One step of the paper's Algorithm 1 as a function: from a state and what its batches said to the next state.

A step does, for each layer (the code cites these lines):

  1. outputs z and gradients g = ∇_z log p(y | x, W)            forward and backward pass
  2. Ψgg ← average of g²,  D = α / √Ψgg                         scale of the gradients
  3. targets Y = Z + G D, as moments of (X, Y − XM)
  4. Ψxx ← average of N_eff/B · XᵀX,  R⁻¹ = R₀⁻¹ + Ψxx
  5. M, U                                                       `updates.py`
  6. Σ = U / (u₀ + N_eff + D_y + 1),  W ~ MN(M, R, Σ)

Averages are debiased (`DebiasedRate`), so "average" means Ψ/b of the paper. Line 1 is in `passes.py`, the others are in
`layer_update.py`.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from bali.inference.joint_step import sum_over, update_together
from bali.inference.layer_update import Stride, condition_layer, draw_weights, forget_factors
from bali.inference.passes import BatchStatistics
from bali.inference.settings import Setup, StepSize
from bali.inference.state import LayerState, State


def next_state(
    setup: Setup, batch: BatchStatistics, step_size: StepSize, ema_rate: float, momentum: float
) -> tuple[State, Tensor]:
    """Lines 2 to 6 of all layers, and the mean log-likelihood of the batch.

    The layers' part is a pure function. Parameters without a posterior, and with several processes the buffers, belong to
    the module, and are moved last, when nothing can fail any more.
    """
    state, group = batch.state, setup.group
    if group is not None:
        batch = sum_over(setup, group, batch)
    batch.totals.check()
    rate = state.rate.advanced(ema_rate, batch.totals.effective_rows)
    stride = Stride(step_size, rate.newest, momentum)
    with torch.autocast(state.generator.device.type, enabled=False):  # the user's own is for passes, not for the algebra
        layers = _update(setup, batch, stride) if group is None else update_together(setup, group, batch, stride)
    if batch.of_others:
        setup.others.step(batch.of_others, float(batch.totals.weight))
    if group is not None:
        group.copy_first(list(setup.network.buffers().values()))
    updated = replace(state, layers=layers, generator=batch.generator, rate=rate, step=state.step + 1)
    return updated, batch.totals.mean


def _update(setup: Setup, batch: BatchStatistics, stride: Stride) -> dict[str, LayerState]:
    """All layers, one after the other, so that rows are freed on the way."""
    updated = {}
    for name, layer in batch.state.layers.items():
        forget_factors(layer)
        share = setup.network.layers[name].step_share
        updated[name] = condition_layer(layer, batch.take(name), setup.settings, stride, share)
    return {
        name: replace(layer, weights=draw_weights(layer, setup.settings, batch.generator)) for name, layer in updated.items()
    }
