"""An inference as it takes steps: a setup, which stays, and a state, a value that every step replaces."""

from __future__ import annotations

import torch
from torch import Tensor

from bali.inference.joint_step import report_failure, summed, together
from bali.inference.passes import BatchStatistics, batch_pass
from bali.inference.settings import Setup, StepSize, check_positive
from bali.inference.state import State
from bali.inference.step import next_state


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
