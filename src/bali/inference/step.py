"""One step of the paper's Algorithm 1 as a function: from a state and what its batches said to the next state.

A step does, for each layer (the code cites these lines):

  1. outputs z and gradients g = ∇_z log p(y | x, W)            forward and backward pass
  2. Ψgg ← average of g²,  D = α / √Ψgg                         scale of the gradients
  3. targets Y = Z + G D, as moments of (X, Y − XM)
  4. Ψxx ← average of N_eff/B · XᵀX,  R⁻¹ = R₀⁻¹ + Ψxx
  5. M, U                                                       `updates.py`
  6. Σ = U / (u₀ + N_eff + D_y + 1),  W ~ MN(M, R, Σ)

Averages are debiased (`DebiasedRate`), so "average" means Ψ/b of the paper. Line 1 is in `passes.py`, the others are in
`layer_update.py`. `Stepping` is an inference as it takes steps: a setup, which stays, and a state, which each one replaces.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from bali.inference.joint_step import report_failure, sum_over, summed, together, update_together
from bali.inference.layer_update import Stride, condition_layer, draw_weights, forget_factors
from bali.inference.passes import BatchStatistics, batch_pass
from bali.inference.settings import Setup, StepSize, check_positive
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


class Stepping:
    """The steps of `LayerwiseInference`."""

    setup: Setup
    state: State
    _accumulated: BatchStatistics | None  # since the last step

    def _begin(self, setup: Setup, generator: torch.Generator) -> None:
        self.setup, self._accumulated = setup, None
        self.state = State(setup.initial_layers(), generator)

    def step(
        self,
        x: Tensor | None = None,
        y: Tensor | None = None,
        ema_rate: float | None = None,
        sample_weight: Tensor | None = None,
        *,
        step_size: StepSize | None = None,
        momentum: float = 0.0,
    ) -> Tensor:
        """Take in one mini-batch. Returns its mean log-likelihood under the weights used, one per member if stacked.

        `sample_weight`, (n,) or (K, n) for stacked members, counts a row that many times; 0 leaves it out of the
        statistics. `step_size` and `ema_rate` may differ from step to step: large steps learn fast, and small ones at the
        end leave less noise. With `momentum` μ, from 0 to less than 1, the mean goes on by this share of its last movement.
        If anything fails, an error is raised and everything stays what it was.

        Batches that were accumulated since the last step count as part of this one, which may be left out; after a failure
        they are forgotten. With several processes, the mini-batch is that of all of them together.
        """
        if not 0.0 <= momentum < 1.0:
            raise ValueError(f"momentum must be at least 0 and less than 1, got {momentum}")
        if step_size is not None:
            check_positive("step_size", step_size)
        settings = self.setup.settings
        with self.setup.network.restoring_buffers():
            batch = self._batch(x, y, sample_weight)
            alpha = settings.step_size if step_size is None else step_size
            beta = settings.ema_rate if ema_rate is None else ema_rate
            self.state, log_likelihood = next_state(self.setup, batch, alpha, beta, momentum)
        self.assign()
        return log_likelihood

    def _batch(self, x: Tensor | None, y: Tensor | None, sample_weight: Tensor | None) -> BatchStatistics:
        """The mini-batch of a step: this one, what was accumulated, or both."""
        earlier, self._accumulated = self._accumulated, None
        try:
            if x is not None and y is not None:
                last = batch_pass(self.setup, self.state, x, y, sample_weight, earlier)
                return last if earlier is None else together(earlier, last)
            if earlier is None or x is not None or y is not None:
                raise ValueError("step needs x and y, or batches that were accumulated before")
            return earlier
        except Exception:
            if self.setup.group is not None:
                report_failure(self.setup, self.setup.group)
            raise

    def accumulate(self, x: Tensor, y: Tensor, sample_weight: Tensor | None = None) -> Tensor:
        """Take in a part of a mini-batch that is too large for one pass; `step` then makes one step of all parts.

        Returns the part's mean log-likelihood. The posterior is that of the mini-batch in one piece, up to rounding. A part
        that fails is left out.
        """
        with self.setup.network.restoring_buffers():
            earlier = self._accumulated
            part = summed(batch_pass(self.setup, self.state, x, y, sample_weight, earlier))
            self._accumulated = part if earlier is None else summed(together(earlier, part))
            return part.totals.mean

    def assign(self) -> None:
        """Write the state's weights into the module."""
        self.setup.network.assign({name: layer.weights for name, layer in self.state.layers.items()})
