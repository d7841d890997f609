"""Noisy Adam (Zhang et al., 2018): natural gradients of a Gaussian with diagonal covariance, in the form of Adam."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from bali_benchmarks.baselines.gradients import gradient_rows
from bali_benchmarks.baselines.mean_field import MeanField, as_matrices, debiased, flattened
from bali_benchmarks.baselines.method import Setting, State, Task
from bali_benchmarks.baselines.perceptrons import per_member, updated_noise


@dataclass(frozen=True)
class NoisyAdam(MeanField):
    """With λ the weight of the KL term, η the prior variance and γ_in = λ / (N η), one step is

        w ~ N(μ, λ/N diag(f + γ_in)⁻¹),  g = ∇_w of the batch's mean log p(y | x, w)
        m ← β₁ m + (1 − β₁)(g − γ_in w),  f ← β₂ f + (1 − β₂) g²
        μ ← μ + α m / (1 − β₁ᵗ) / (f + γ_in + γ_ex)

    g² is the square of the batch's mean gradient, as in Adam: smaller than the Fisher matrix that it stands for (the mean
    of squares) by up to the batch size, so that the posterior is as much too wide. `vogn.py` has the mean of squares. The
    noise of a regression is the point that maximises the evidence bound, where the paper has a Gamma posterior.
    """

    title: ClassVar[str] = "Noisy Adam"
    citation: ClassVar[str] = "Zhang, Sun, Duvenaud, Grosse: Noisy natural gradient as variational inference. ICML 2018."
    grid: ClassVar[tuple[dict[str, Any], ...]] = tuple(
        {"learning_rate": rate, "kl_weight": weight} for rate in (0.01, 0.03) for weight in (0.1, 0.03, 0.01)
    )

    damping: Setting = 1e-3  # γ_ex: of the step only, not of the posterior
    beta1: Setting = 0.9
    beta2: Setting = 0.999

    @torch.no_grad()
    def step(self, task: Task, state: State, x: Tensor, y: Tensor, generator: torch.Generator) -> State:
        w = self.draw(task, state, generator)
        rows = gradient_rows(task, as_matrices(task, w), x, y, state["noise_variance"])
        g = flattened(rows.weight_gradients())
        pull, count = self.prior_curvature(task, state), state["count"] + 1
        momentum = (g - pull * w).lerp(state["momentum"], per_member(self.beta1, g))
        curvature = g.square().lerp(state["curvature"], per_member(self.beta2, g))
        direction = debiased(momentum, self.beta1, count) / (curvature + (pull + per_member(self.damping, g)))
        noise = state["noise_variance"] if task.classification else updated_noise(task, state, rows.outputs, y)
        return {
            "mean": state["mean"] + per_member(self.learning_rate, g) * direction,
            "momentum": momentum,
            "curvature": curvature,
            "count": count,
            "noise_variance": noise,
        }
