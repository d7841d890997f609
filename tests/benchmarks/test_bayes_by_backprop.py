"""Bayes by backprop reaches the best independent Gaussians of a linear model, which are known."""

from __future__ import annotations

import torch

from bali_benchmarks.baselines import Task
from bali_benchmarks.baselines.bayes_by_backprop import BayesByBackprop


def test_linear_model() -> None:
    """With Λ = Ĩ XᵀX / σ² + I / v the posterior precision: the means are the posterior's, the variances 1 / Λᵢᵢ.

    A KL weight of λ is a likelihood to the power 1/λ.
    """
    generator = torch.Generator().manual_seed(0)
    n, noise, prior = 30, 0.5, torch.tensor([1.0, 8.0, 1.0], dtype=torch.float64)
    kl_weight = torch.tensor([1.0, 1.0, 0.25], dtype=torch.float64)
    x = torch.randn(n, 2, dtype=torch.float64, generator=generator)
    x[:, 1] += 0.7 * x[:, 0]  # correlated, so that marginal and conditional variances differ
    y = x @ torch.tensor([[1.0], [-0.5]], dtype=torch.float64) + noise**0.5 * torch.randn(
        n, 1, dtype=torch.float64, generator=generator
    )
    method = BayesByBackprop(kl_weight=kl_weight, prior_variance=prior, learning_rate=0.01)
    task = Task((2, 1), "relu", 3, n, classification=False, dtype=torch.float64)
    state = method.start(task, generator)
    means, log_stds = [], []
    for step in range(3000):
        state = method.step(task, state, x.expand(3, -1, -1), y.expand(3, -1, -1), generator)
        state["noise_variance"] = torch.full((3,), noise, dtype=torch.float64)
        if step >= 1000:  # the average of a random walk about the optimum
            means.append(state["weight.0"])
            log_stds.append(state["log_std.0"])
    design = torch.cat([x, torch.ones(n, 1, dtype=torch.float64)], 1)
    for k in range(3):
        precision = design.mT @ design / noise / kl_weight[k] + 3.0 / prior[k] * torch.eye(3, dtype=torch.float64)
        mean = torch.linalg.solve(precision, design.mT @ y / noise / kl_weight[k])
        torch.testing.assert_close(torch.stack(means).mean(0)[k], mean, atol=0.02, rtol=0.0)
        std = torch.stack(log_stds).mean(0)[k].exp()[:, 0]
        torch.testing.assert_close(std, precision.diagonal().rsqrt(), rtol=0.04, atol=0.0)


def test_predictions_draw_weights_from_their_gaussians() -> None:
    task = Task((2, 1), "relu", 1, 10, classification=False, dtype=torch.float64)
    generator = torch.Generator().manual_seed(0)
    mean = torch.tensor([[[1.0], [2.0], [3.0]]], dtype=torch.float64)
    std = torch.tensor([[[0.1], [0.2], [0.3]]], dtype=torch.float64)
    x = torch.tensor([[[1.0, -2.0]]], dtype=torch.float64)
    state = {"average.0": mean, "average.1": std.log()}
    outputs = BayesByBackprop().outputs(task, state, x, 50_000, generator)[:, 0, 0, 0]
    variance = 0.1**2 + (2 * 0.2) ** 2 + 0.3**2
    assert abs(float(outputs.mean())) < 5 * (variance / 50_000) ** 0.5  # 1 − 4 + 3
    torch.testing.assert_close(outputs.var(), torch.tensor(variance, dtype=torch.float64), rtol=0.03, atol=0.0)
