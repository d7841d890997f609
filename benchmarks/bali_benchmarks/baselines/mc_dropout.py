"""Monte Carlo dropout: training drops units at random, and a prediction goes on dropping them.

Gal and Ghahramani (2016). Units are dropped before every layer but the first. Rate and weight decay are chosen on held-out
rows, and so is the precision of a regression, by the factor on the noise that all methods have: what the authors did in
their rerun of 2018.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from bali.layers.modules import ACTIVATIONS
from bali_benchmarks.baselines.adam import adam_start, adam_step, averaged_weights
from bali_benchmarks.baselines.method import Method, Setting, State, Task
from bali_benchmarks.baselines.perceptrons import (
    affine,
    initial_weights,
    log_likelihood,
    packed,
    per_member,
    unpacked,
    updated_noise,
)


@dataclass(frozen=True)
class MCDropout(Method):
    title: ClassVar[str] = "MC dropout"
    citation: ClassVar[str] = "Gal and Ghahramani, Dropout as a Bayesian approximation, ICML 2016"
    grid = tuple(
        {"rate": rate, "prior_precision": precision, "learning_rate": 1e-2}
        for rate in (0.005, 0.02, 0.05)
        for precision in (0.1, 2.0)
    )

    rate: Setting = 0.02
    prior_precision: Setting = 1.0
    learning_rate: Setting = 1e-2

    def start(self, task: Task, generator: torch.Generator) -> State:
        weights = initial_weights(task, generator)
        return packed(weights) | adam_start(weights) | {"noise_variance": weights[0].new_ones(task.members)}

    def step(self, task: Task, state: State, x: Tensor, y: Tensor, generator: torch.Generator) -> State:
        weights = [w.detach().requires_grad_() for w in unpacked(state)]
        outputs = self._forward(task, weights, x, x.shape[-2], generator)
        loss = -log_likelihood(task, outputs, y, state["noise_variance"]).mean(1).sum()
        decay = [per_member(self.prior_precision, w) / task.n_data for w in weights]
        with torch.no_grad():
            gradients = [g + d * w for g, d, w in zip(torch.autograd.grad(loss, weights), decay, weights, strict=True)]
            new_weights, moments = adam_step(state, weights, gradients, self.learning_rate)
        noise = state["noise_variance"] if task.classification else updated_noise(task, state, outputs, y)
        return packed(new_weights) | moments | {"noise_variance": noise}

    def outputs(self, task: Task, state: State, x: Tensor, n_samples: int, generator: torch.Generator) -> Tensor:
        with torch.no_grad():
            return self._forward(task, averaged_weights(state), x.expand(n_samples, *x.shape), 1, generator)

    def _forward(self, task: Task, weights: list[Tensor], x: Tensor, n_masks: int, generator: torch.Generator) -> Tensor:
        """Outputs with units dropped: each row by its own mask, or, with one mask, all rows of a draw by the same."""
        activation = ACTIVATIONS[task.activation]()
        z = affine(x, weights[0])
        for weight in weights[1:]:
            kept = self._kept((*z.shape[:-2], n_masks, z.shape[-1]), z, generator)
            z = affine(activation(z) * kept, weight)
        return z

    def _kept(self, shape: tuple[int, ...], like: Tensor, generator: torch.Generator) -> Tensor:
        """1 / (1 − rate) for a unit that is kept and 0 for one that is dropped, (..., K, n_masks, D).

        A random word of 64 bits decides about four units, in a quarter of the time of a uniform number for each. Rates are
        rounded to multiples of 2⁻¹⁶.
        """
        n = math.prod(shape)
        words = torch.empty(-(-n // 4), dtype=torch.int64, device=like.device).random_(-(2**63), None, generator=generator)
        places = words.view(torch.int16)[:n].view(shape)  # −2¹⁵ to 2¹⁵ − 1, alike likely
        rate = torch.as_tensor(self.rate, dtype=like.dtype, device=like.device).reshape(-1, 1, 1)
        n_dropped = (rate * 2**16).round()  # of the 2¹⁶ places
        kept = places >= (n_dropped - 2**15).to(torch.int32)
        return kept.to(like.dtype).mul_(2**16 / (2**16 - n_dropped))
