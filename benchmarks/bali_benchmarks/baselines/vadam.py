"""Vadam (Khan et al., 2018): Adam whose weights are perturbed before each gradient, read as variational inference."""

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
class Vadam(MeanField):
    """With λ the weight of the KL term (1 in the paper), η the prior variance and γ = λ / (N η), one step is

        w ~ N(μ, λ/N diag(f + γ)⁻¹),  g = ∇_w of the batch's mean log p(y | x, w)
        m ← β₁ m + (1 − β₁)(g − γ μ),  f ← β₂ f + (1 − β₂) g²
        μ ← μ + α m̂ / (√f̂ + γ)

    where hats take the averages' first values out. f converges to the mean of the squared batch gradient: for batches of
    one row the Fisher matrix's diagonal (and the posterior that of mean field), for B rows as little as 1/B of it. The
    variance is then as much too large, which a λ of about 1/B undoes.
    """

    title: ClassVar[str] = "Vadam"
    citation: ClassVar[str] = (
        "Khan, Nielsen, Tangkaratt, Lin, Gal, Srivastava: Fast and scalable Bayesian deep learning by weight-perturbation "
        "in Adam. ICML 2018."
    )
    grid: ClassVar[tuple[dict[str, Any], ...]] = tuple(
        {"learning_rate": rate, "kl_weight": weight} for rate in (3e-3, 1e-2) for weight in (0.3, 0.1, 0.03)
    )

    beta1: Setting = 0.9
    beta2: Setting = 0.999

    @torch.no_grad()
    def step(self, task: Task, state: State, x: Tensor, y: Tensor, generator: torch.Generator) -> State:
        w = self.draw(task, state, generator)
        rows = gradient_rows(task, as_matrices(task, w), x, y, state["noise_variance"])
        g, mean = flattened(rows.weight_gradients()), state["mean"]
        pull, count = self.prior_curvature(task, state), state["count"] + 1
        momentum = (g - pull * mean).lerp(state["momentum"], per_member(self.beta1, g))
        curvature = g.square().lerp(state["curvature"], per_member(self.beta2, g))
        root = debiased(curvature, self.beta2, count, self.initial_curvature).clamp_min_(0.0).sqrt_()
        direction = debiased(momentum, self.beta1, count) / (root + pull)
        noise = state["noise_variance"] if task.classification else updated_noise(task, state, rows.outputs, y)
        return {
            "mean": mean + per_member(self.learning_rate, g) * direction,
            "momentum": momentum,
            "curvature": curvature,
            "count": count,
            "noise_variance": noise,
        }
