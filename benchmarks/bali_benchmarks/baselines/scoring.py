"""How likely networks make rows that they were not trained on, and by how much their noise should be corrected."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from bali_benchmarks.baselines.method import Method, State, Task
from bali_benchmarks.baselines.perceptrons import LEAST_NOISE

#: What a regression's noise variance may be multiplied by, 1/64 to 32. Residuals in training tell too little of it where the
#: network fits its own rows too well, and too much where they include the method's own noise, as in dropout.
NOISE_FACTORS = tuple(2.0 ** (k / 2) for k in range(-12, 11))


@torch.no_grad()
def member_scores(
    method: Method, task: Task, state: State, x: Tensor, y: Tensor, n_samples: int, generator: torch.Generator
) -> tuple[Tensor, Tensor]:
    """Mean log-likelihood (K,) of the rows x (K, n, D_in) under the mixture over draws, and the noise factor behind it (K,).

    A member that has diverged scores −∞.
    """
    outputs = method.outputs(task, state, x, n_samples, generator)
    if task.classification:
        observed = outputs.log_softmax(-1).gather(-1, y.expand(len(outputs), -1, -1)[..., None])[..., 0]
        scores, factors = _mixture(observed), outputs.new_ones(task.members)
    else:
        squared = (y - outputs).square().sum(-1)  # (S, K, n)
        noise = method.noise_variance(state).clamp_min(LEAST_NOISE)
        by_factor = torch.stack([_mixture(_gaussian(squared, f * noise, y.shape[-1])) for f in NOISE_FACTORS])
        by_factor = torch.where(by_factor.isfinite(), by_factor, -torch.inf)
        scores, best = by_factor.max(0)
        factors = torch.as_tensor(NOISE_FACTORS, dtype=scores.dtype, device=scores.device)[best]
    return torch.where(scores.isfinite(), scores, -torch.inf), factors


def _gaussian(squared: Tensor, variance: Tensor, n_outputs: int) -> Tensor:
    """log-density for squared residuals (S, K, n) and variances (K,)."""
    v = variance[:, None]
    return -0.5 * (squared / v + n_outputs * (v.log() + math.log(2 * math.pi)))


def _mixture(components: Tensor) -> Tensor:
    """Mean over rows of the mixture's log-density, (K,), from components (S, K, n)."""
    return (components.logsumexp(0) - math.log(len(components))).mean(-1)
