"""K-FAC (Martens and Grosse, 2015): natural gradient with a Kronecker-factored Fisher matrix for each layer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from bali_benchmarks.baselines import curvature
from bali_benchmarks.baselines.gradients import Rows, gradient_rows
from bali_benchmarks.baselines.method import Method, Setting, State, Task
from bali_benchmarks.baselines.perceptrons import forward, initial_weights, packed, per_member, unpacked, updated_noise


@dataclass(frozen=True)
class KFAC(Method):
    """With A and S moving averages of the second moments of a layer's inputs and of the gradients at its outputs (for
    targets drawn from the network's own predictive distribution), η the prior variance and γ_in = 1 / (N η), one step is

        V = ∇_W of the batch's mean log p(y | x, W) − γ_in W
        W ← W + ν α (A + π√γ I)⁻¹ V (S + √γ/π I)⁻¹,  γ = γ_in + γ_ex

    where ν ≤ 1 keeps the step's squared length in the metric of the damped Fisher matrix below `trust` (Ba et al., 2017).
    Factors and inverses are renewed every `refresh` steps.
    """

    title: ClassVar[str] = "K-FAC"
    citation: ClassVar[str] = (
        "Martens, Grosse: Optimizing neural networks with Kronecker-factored approximate curvature. ICML 2015."
    )
    grid: ClassVar[tuple[dict[str, Any], ...]] = tuple(
        {"learning_rate": rate, "prior_variance": variance} for rate in (0.03, 0.1) for variance in (0.01, 0.1, 1.0)
    )

    learning_rate: Setting = 0.01
    prior_variance: Setting = 1.0
    damping: Setting = 1e-3  # γ_ex
    trust: Setting = 1e-3
    ema_rate: Setting = 0.05
    refresh: int = 10

    def start(self, task: Task, generator: torch.Generator) -> State:
        weights = initial_weights(task, generator)
        state = packed(weights)
        for name, side in (("input_moments", 1), ("gradient_moments", 2), ("input_root", 1), ("gradient_root", 2)):
            state |= packed([w.new_zeros(len(w), w.shape[side], w.shape[side]) for w in weights], name)
        count, noise = weights[0].new_zeros(task.members), weights[0].new_ones(task.members)
        return state | {"count": count, "noise_variance": noise}

    def used_weights(self, task: Task, state: State, generator: torch.Generator) -> list[Tensor]:
        """At which the gradient is taken; a noisy method draws them."""
        return unpacked(state)

    def intrinsic_damping(self, task: Task, like: Tensor) -> Tensor:
        """γ_in, in the shape that multiplies `like`."""
        return 1.0 / (task.n_data * per_member(self.prior_variance, like))

    @torch.no_grad()
    def step(self, task: Task, state: State, x: Tensor, y: Tensor, generator: torch.Generator) -> State:
        due = int(state["count"].max()) % self.refresh == 0
        used = self.used_weights(task, state, generator)
        rows = gradient_rows(task, used, x, y, state["noise_variance"], fisher=generator if due else None)
        new = {**state, **(self._refreshed(task, state, rows) if due else {}), "count": state["count"] + 1}
        if not task.classification:
            new["noise_variance"] = updated_noise(task, state, rows.outputs, y)
        return new | packed(self._moved(task, new, used, rows.weight_gradients()))

    def _refreshed(self, task: Task, state: State, rows: Rows) -> State:
        """Factors with the new rows in them, and the roots of their inverses."""
        rate = curvature.warm_rate(state["count"], self.refresh, self.ema_rate)
        new: State = {}
        for i, (x, g) in enumerate(zip(rows.inputs, rows.fisher_gradients, strict=True)):
            a = curvature.moved_average(state[f"input_moments.{i}"], curvature.biased_moments(x), rate)
            s = curvature.moved_average(state[f"gradient_moments.{i}"], curvature.second_moments(g), rate)
            pi, root = curvature.split(a, s), (self.intrinsic_damping(task, a) + per_member(self.damping, a)).sqrt()
            new |= {f"input_moments.{i}": a, f"gradient_moments.{i}": s}
            new[f"input_root.{i}"] = curvature.inverse_root(a, pi * root, f"damped input moments of layer {i}")
            new[f"gradient_root.{i}"] = curvature.inverse_root(s, root / pi, f"damped gradient moments of layer {i}")
        return new

    def _moved(self, task: Task, state: State, used: Sequence[Tensor], gradients: Sequence[Tensor]) -> list[Tensor]:
        """The weights (of a noisy method: their means) after the step."""
        wanted = [g - self.intrinsic_damping(task, g) * w for g, w in zip(gradients, used, strict=True)]
        roots = zip(unpacked(state, "input_root"), unpacked(state, "gradient_root"), strict=True)
        steps = [curvature.preconditioned(v, *root) for v, root in zip(wanted, roots, strict=True)]
        rate = curvature.trusted_rate(self.learning_rate, self.trust, wanted, steps)
        return [w + per_member(rate, w) * s for w, s in zip(unpacked(state), steps, strict=True)]

    @torch.no_grad()
    def outputs(self, task: Task, state: State, x: Tensor, n_samples: int, generator: torch.Generator) -> Tensor:
        return forward(task, unpacked(state), x)[None]
