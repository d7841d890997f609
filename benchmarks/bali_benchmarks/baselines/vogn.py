"""Variational online Gauss-Newton (Khan et al., 2018), with the momentum, annealing and damping of Osawa et al. (2019)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from bali_benchmarks.baselines.gradients import gradient_rows
from bali_benchmarks.baselines.mean_field import MeanField, as_matrices, flattened
from bali_benchmarks.baselines.method import Setting, State, Task
from bali_benchmarks.baselines.perceptrons import per_member, updated_noise


@dataclass(frozen=True)
class VOGN(MeanField):
    """With λ the weight of the KL term, η the prior variance and γ_in = λ / (N η), one step is

        w ~ N(μ, 1/N diag(f + γ_in + γ_ex)⁻¹),  g_b = ∇_w log p(y_b | x_b, w) for each row b
        m ← β₁ m + mean_b g_b − γ_in μ,  f ← (1 − λ β₂) f + β₂ mean_b g_b²
        μ ← μ + α m / (f + γ_in + γ_ex)

    and λ goes linearly from its first to its last value. The mean of the rows' squared gradients, which sets VOGN apart
    from Vadam, costs one product of matrices for each layer (`Rows.squared_gradients`).
    """

    title: ClassVar[str] = "VOGN"
    citation: ClassVar[str] = (
        "Khan, Nielsen, Tangkaratt, Lin, Gal, Srivastava: Fast and scalable Bayesian deep learning by weight-perturbation "
        "in Adam. ICML 2018. Osawa et al.: Practical deep learning with Bayesian principles. NeurIPS 2019."
    )
    grid: ClassVar[tuple[dict[str, Any], ...]] = tuple(
        {"learning_rate": rate, "kl_weight": weight} for rate in (3e-3, 1e-2) for weight in (1.0, 0.3, 0.1)
    )

    initial_kl_weight: Setting = 1.0
    annealing_steps: Setting = 1000.0
    damping: Setting = 0.0  # γ_ex
    beta1: Setting = 0.9
    beta2: Setting = 0.01  # the share of the newest squares, as in the listing; not what is kept of the old ones

    def _kl_weight(self, state: State) -> Tensor:
        """λ after as many steps as have been made, (K, 1)."""
        like = state["mean"]
        done = (state["count"][:, None] / per_member(self.annealing_steps, like)).clamp_max(1.0)
        return torch.lerp(per_member(self.initial_kl_weight, like), per_member(self.kl_weight, like), done)

    def prior_curvature(self, task: Task, state: State) -> Tensor:
        return self._kl_weight(state) / (task.n_data * per_member(self.prior_variance, state["mean"]))

    def precision(self, task: Task, state: State) -> Tensor:
        f = state["curvature"]
        return task.n_data * (f + (self.prior_curvature(task, state) + per_member(self.damping, f)))

    @torch.no_grad()
    def step(self, task: Task, state: State, x: Tensor, y: Tensor, generator: torch.Generator) -> State:
        w = self.draw(task, state, generator)
        rows = gradient_rows(task, as_matrices(task, w), x, y, state["noise_variance"])
        g, squares = flattened(rows.weight_gradients()), flattened(rows.squared_gradients())
        share = per_member(self.beta2, g)
        noise = state["noise_variance"] if task.classification else updated_noise(task, state, rows.outputs, y)
        new = {
            **state,
            "curvature": (1.0 - self._kl_weight(state) * share) * state["curvature"] + share * squares,
            "noise_variance": noise,
        }
        momentum = per_member(self.beta1, g) * state["momentum"] + g - self.prior_curvature(task, state) * state["mean"]
        metric = self.precision(task, new) / task.n_data  # f + γ_in + γ_ex
        mean = state["mean"] + per_member(self.learning_rate, g) * momentum / metric
        return new | {"mean": mean, "momentum": momentum, "count": state["count"] + 1}
