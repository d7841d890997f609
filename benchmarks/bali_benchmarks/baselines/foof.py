"""FOOF (Benzing, 2022): gradients times the inverse second moments of the layer's inputs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from bali_benchmarks.baselines import curvature
from bali_benchmarks.baselines.gradients import gradient_rows
from bali_benchmarks.baselines.method import Method, Setting, State, Task
from bali_benchmarks.baselines.perceptrons import forward, initial_weights, packed, per_member, unpacked, updated_noise


@dataclass(frozen=True)
class FOOF(Method):
    """K-FAC without the factor of the gradients: with A a moving average of the second moments of a layer's inputs,

        W ← W + α (A + δ I)⁻¹ (∇_W of the batch's mean log p(y | x, W) − κ W)

    With the damping δ and the weight decay κ both the prior precision over N, and gradients scaled alike, this is how BALI
    moves its mean. Gradients of a regression are those of noise 1: nothing in the step would make up for another scale.
    A step is a gradient step on the layers' outputs; one that moves them by more than √`trust` in all is shortened.
    """

    title: ClassVar[str] = "FOOF"
    citation: ClassVar[str] = (
        "Benzing: Gradient descent on neurons and its link to approximate second-order optimization. ICML 2022."
    )
    grid: ClassVar[tuple[dict[str, Any], ...]] = tuple(
        {"learning_rate": rate, "damping": damping} for rate in (0.1, 0.3, 1.0) for damping in (1e-2, 1e-1)
    )

    learning_rate: Setting = 0.1
    damping: Setting = 1e-2
    weight_decay: Setting = 1e-4
    trust: Setting = 0.1
    ema_rate: Setting = 0.05
    refresh: int = 10

    def start(self, task: Task, generator: torch.Generator) -> State:
        weights = initial_weights(task, generator)
        count, noise = weights[0].new_zeros(task.members), weights[0].new_ones(task.members)
        moments, roots = ([w.new_zeros(len(w), w.shape[1], w.shape[1]) for w in weights] for _ in range(2))
        state = packed(weights) | packed(moments, "input_moments") | packed(roots, "input_root")
        return state | {"count": count, "noise_variance": noise}

    @torch.no_grad()
    def step(self, task: Task, state: State, x: Tensor, y: Tensor, generator: torch.Generator) -> State:
        weights = unpacked(state)
        rows = gradient_rows(task, weights, x, y, torch.ones_like(state["noise_variance"]))
        new = {**state, "count": state["count"] + 1}
        if not task.classification:
            new["noise_variance"] = updated_noise(task, state, rows.outputs, y)
        if int(state["count"].max()) % self.refresh == 0:
            new |= self._refreshed(state, rows.inputs)
        wanted = [g - per_member(self.weight_decay, w) * w for g, w in zip(rows.weight_gradients(), weights, strict=True)]
        roots = unpacked(new, "input_root")
        steps = [curvature.times_inverse(root, v) for root, v in zip(roots, wanted, strict=True)]
        rate = curvature.trusted_rate(self.learning_rate, self.trust, wanted, steps)
        return new | packed([w + per_member(rate, w) * step for w, step in zip(weights, steps, strict=True)])

    def _refreshed(self, state: State, inputs: list[Tensor]) -> State:
        rate = curvature.warm_rate(state["count"], self.refresh, self.ema_rate)
        new: State = {}
        for i, x in enumerate(inputs):
            moments = curvature.moved_average(state[f"input_moments.{i}"], curvature.biased_moments(x), rate)
            root = curvature.inverse_root(moments, per_member(self.damping, moments), f"damped input moments of layer {i}")
            new |= {f"input_moments.{i}": moments, f"input_root.{i}": root}
        return new

    @torch.no_grad()
    def outputs(self, task: Task, state: State, x: Tensor, n_samples: int, generator: torch.Generator) -> Tensor:
        return forward(task, unpacked(state), x)[None]
