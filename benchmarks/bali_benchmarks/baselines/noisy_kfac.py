"""Noisy K-FAC (Zhang et al., 2018): natural gradients of a matrix-variate Gaussian for each layer, NNG-MVG."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from bali_benchmarks.baselines.curvature import product
from bali_benchmarks.baselines.kfac import KFAC
from bali_benchmarks.baselines.method import Setting, State, Task
from bali_benchmarks.baselines.perceptrons import forward, per_member, unpacked


@dataclass(frozen=True)
class NoisyKFAC(KFAC):
    """K-FAC at weights drawn from W ~ MN(M, λ/N (A + π√γ I)⁻¹, (S + √γ/π I)⁻¹), with γ_in = λ / (N η).

    The listing in BALI's appendix leaves out λ/N; the original has it, and without it the posterior would not narrow with
    more data. Before the first mini-batch the curvature is not known and the weights are the means. The noise of a
    regression is the point that maximises the evidence bound, where the original has a Gamma posterior.
    """

    title: ClassVar[str] = "Noisy K-FAC"
    citation: ClassVar[str] = "Zhang, Sun, Duvenaud, Grosse: Noisy natural gradient as variational inference. ICML 2018."
    grid: ClassVar[tuple[dict[str, Any], ...]] = tuple(
        {"prior_variance": variance, "kl_weight": weight} for variance in (0.1, 1.0) for weight in (1.0, 0.5, 0.2)
    )

    learning_rate: Setting = 0.1
    trust: Setting = 1e-2
    kl_weight: Setting = 1.0

    def intrinsic_damping(self, task: Task, like: Tensor) -> Tensor:
        return per_member(self.kl_weight, like) * super().intrinsic_damping(task, like)

    def used_weights(self, task: Task, state: State, generator: torch.Generator) -> list[Tensor]:
        drawn = []
        for i, mean in enumerate(unpacked(state)):
            noise = torch.randn(mean.shape, generator=generator, dtype=mean.dtype, device=mean.device)
            spread = (per_member(self.kl_weight, mean) / task.n_data).sqrt()
            drawn.append(mean + spread * (product(state[f"input_root.{i}"], noise) @ state[f"gradient_root.{i}"].mT))
        return drawn

    @torch.no_grad()
    def outputs(self, task: Task, state: State, x: Tensor, n_samples: int, generator: torch.Generator) -> Tensor:
        draws = (self.used_weights(task, state, generator) for _ in range(n_samples))
        return torch.stack([forward(task, weights, x) for weights in draws])
