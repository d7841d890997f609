"""What Noisy Adam, Vadam and VOGN share: an independent Gaussian for every weight, its precision a moving average of squared
gradients.

All weights of a member stand in one row of a (K, P) tensor, so that a step is a few operations on all layers at once.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from bali_benchmarks.baselines.method import Method, Setting, State, Task
from bali_benchmarks.baselines.perceptrons import forward, initial_weights, per_member


def flattened(matrices: Sequence[Tensor]) -> Tensor:
    """All entries of matrices (K, D_in + 1, D_out), (K, P)."""
    return torch.cat([m.flatten(1) for m in matrices], 1)


def as_matrices(task: Task, flat: Tensor) -> list[Tensor]:
    """What `flattened` flattened, as views."""
    shapes = [(n_in + 1, n_out) for n_in, n_out in itertools.pairwise(task.layer_sizes)]
    parts = torch.split(flat, [n_in * n_out for n_in, n_out in shapes], 1)
    return [part.view(len(flat), *shape) for part, shape in zip(parts, shapes, strict=True)]


@dataclass(frozen=True)
class MeanField(Method):
    """Settings common to the three. The curvature is that of the mean log-likelihood of a row; times N it is a precision."""

    learning_rate: Setting = 1e-3
    prior_variance: Setting = 1.0  # η
    kl_weight: Setting = 1.0  # λ
    #: Before any gradient is seen: with N rows a weight's standard deviation is then about 1/√N.
    initial_curvature: Setting = 1.0

    def start(self, task: Task, generator: torch.Generator) -> State:
        mean = flattened(initial_weights(task, generator))
        return {
            "mean": mean,
            "momentum": torch.zeros_like(mean),
            "curvature": per_member(self.initial_curvature, mean).expand_as(mean).clone(),
            "count": mean.new_zeros(task.members),
            "noise_variance": mean.new_ones(task.members),
        }

    def prior_curvature(self, task: Task, state: State) -> Tensor:
        """γ_in = λ / (N η): the prior's part beside the curvature, (K, 1)."""
        weight, variance = (per_member(s, state["mean"]) for s in (self.kl_weight, self.prior_variance))
        return weight / (task.n_data * variance)

    def precision(self, task: Task, state: State) -> Tensor:
        """Of the Gaussian of every weight, N/λ (f + γ_in), (K, P)."""
        f = state["curvature"]
        return (f + self.prior_curvature(task, state)) * (task.n_data / per_member(self.kl_weight, f))

    def draw(self, task: Task, state: State, generator: torch.Generator) -> Tensor:
        """One draw of all weights, (K, P)."""
        mean = state["mean"]
        noise = torch.randn(mean.shape, generator=generator, dtype=mean.dtype, device=mean.device)
        return torch.addcdiv(mean, noise, self.precision(task, state).sqrt_())

    @torch.no_grad()
    def outputs(self, task: Task, state: State, x: Tensor, n_samples: int, generator: torch.Generator) -> Tensor:
        draws = (as_matrices(task, self.draw(task, state, generator)) for _ in range(n_samples))
        return torch.stack([forward(task, weights, x) for weights in draws])


def debiased(average: Tensor, decay: Setting, count: Tensor, start: Setting = 0.0) -> Tensor:
    """A moving average of `count` (K,) values without its first value's share: (average − decayᵗ·start) / (1 − decayᵗ)."""
    left = per_member(decay, average) ** count[:, None]
    return (average - left * per_member(start, average)) / (1.0 - left)
