"""The maximum of the posterior, by Adam: the networks that everybody trains, with a Gaussian prior as weight decay.

Adam: Kingma and Ba (2015). The prior of every weight is N(0, 1 / prior_precision); weight decay for a mean loss over n rows
is therefore prior_precision / n.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from bali_benchmarks.baselines.adam import adam_start, adam_step, averaged_weights
from bali_benchmarks.baselines.gradients import gradient_rows
from bali_benchmarks.baselines.method import Method, Setting, State, Task
from bali_benchmarks.baselines.perceptrons import forward, initial_weights, packed, per_member, unpacked, updated_noise


@dataclass(frozen=True)
class MAP(Method):
    title: ClassVar[str] = "MAP"
    citation: ClassVar[str] = "Kingma and Ba, Adam: A method for stochastic optimization, ICLR 2015"
    grid = tuple(
        {"learning_rate": rate, "prior_precision": precision} for rate in (3e-3, 1e-2) for precision in (0.1, 1.0, 10.0)
    )

    learning_rate: Setting = 1e-2
    prior_precision: Setting = 1.0

    def start(self, task: Task, generator: torch.Generator) -> State:
        weights = initial_weights(task, generator)
        return packed(weights) | adam_start(weights) | {"noise_variance": weights[0].new_ones(task.members)}

    @torch.no_grad()
    def step(self, task: Task, state: State, x: Tensor, y: Tensor, generator: torch.Generator) -> State:
        weights = unpacked(state)
        rows = gradient_rows(task, weights, x, y, state["noise_variance"])
        decay = [per_member(self.prior_precision, w) / task.n_data * w for w in weights]
        losses = [d - g for d, g in zip(decay, rows.weight_gradients(), strict=True)]
        new_weights, moments = adam_step(state, weights, losses, self.learning_rate)
        noise = state["noise_variance"] if task.classification else updated_noise(task, state, rows.outputs, y)
        return packed(new_weights) | moments | {"noise_variance": noise}

    @torch.no_grad()
    def outputs(self, task: Task, state: State, x: Tensor, n_samples: int, generator: torch.Generator) -> Tensor:
        return forward(task, averaged_weights(state), x)[None]
