"""One step as a function: from a state and what its batches said to the next state. Lines are those of `layerwise.py`."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from bali.inference.joint_step import sum_over, update_together
from bali.inference.layer_update import Stride, condition_layer, draw_weights, forget_factors
from bali.inference.passes import Accumulated
from bali.inference.settings import StepSize
from bali.inference.setup import Setup
from bali.inference.state import LayerState, State


def next_state(
    setup: Setup, accumulated: Accumulated, step_size: StepSize, ema_rate: float, momentum: float
) -> tuple[State, Tensor]:
    """Lines 2 to 6 of all layers, and the mean log-likelihood of the batch.

    The layers' part is a pure function. Parameters without a posterior, and with several processes the buffers, belong to
    the module, and are moved last, when nothing can fail any more.
    """
    state, totals, of_others, group = accumulated.state, accumulated.totals, accumulated.of_others, setup.group
    if group is not None:
        statistics, totals, of_others = sum_over(setup, group, accumulated)
    rate = state.rate.advanced(ema_rate, totals.effective_rows)
    stride = Stride(step_size, rate.newest, momentum)
    with torch.autocast(state.generator.device.type, enabled=False):  # the user's own is for passes, not for the algebra
        if group is None:
            layers = _update(setup, accumulated, stride)
        else:
            layers = update_together(setup, group, accumulated, statistics, stride)
    if of_others:
        setup.others.step(of_others, float(totals.weight))
    if group is not None:
        group.copy_first(list(setup.network.buffers().values()))
    updated = replace(state, layers=layers, generator=accumulated.generator, rate=rate, step=state.step + 1)
    return updated, totals.mean


def _update(setup: Setup, accumulated: Accumulated, stride: Stride) -> dict[str, LayerState]:
    """All layers, one after the other, so that rows are freed on the way."""
    updated = {}
    for name, layer in accumulated.state.layers.items():
        forget_factors(layer)
        share = setup.network.layers[name].step_share
        updated[name] = condition_layer(layer, accumulated.take(name), setup.settings, stride, share)
    return {
        name: replace(layer, weights=draw_weights(layer, setup.settings, accumulated.generator))
        for name, layer in updated.items()
    }
