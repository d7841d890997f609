"""Monte Carlo dropout: what dropping units does to the outputs, and the choice of its rate."""

from __future__ import annotations

import numpy as np
import torch
from sklearn.datasets import load_iris

from bali.predictive import metrics
from bali_benchmarks.baselines import BaselineClassifier, BaselineRegressor, Task
from bali_benchmarks.baselines.adam import averaged_weights
from bali_benchmarks.baselines.mc_dropout import MCDropout
from bali_benchmarks.baselines.perceptrons import forward, layers


def test_moments_of_the_outputs() -> None:
    """A linear network with units h dropped at rate p has outputs of mean Σ hw and variance p / (1 − p) Σ (hw)²."""
    task = Task((3, 6, 1), "identity", 2, 10, classification=False, dtype=torch.float64)
    generator = torch.Generator().manual_seed(0)
    rate = torch.tensor([0.1, 0.5], dtype=torch.float64)
    method = MCDropout(rate=rate)
    state = method.start(task, generator)
    x = torch.randn(2, 4, 3, dtype=torch.float64, generator=generator)
    outputs = method.outputs(task, state, x, 40_000, generator)
    weights = averaged_weights(state)
    terms = layers(task, weights, x)[0][1] * weights[1][:, :-1].mT
    variance = (rate / (1 - rate))[:, None] * terms.square().sum(-1)
    error = (outputs.mean(0) - forward(task, weights, x))[..., 0].abs()
    assert (error < 5 * (variance / 40_000).sqrt()).all()
    torch.testing.assert_close(outputs.var(0)[..., 0], variance, rtol=0.05, atol=0.0)


def test_units_are_dropped_for_all_rows_of_a_draw_alike_and_for_each_row_in_training() -> None:
    """Equal rows have equal outputs within a draw; in training they are dropped independently, and their noise shows it."""
    task = Task((1, 20, 1), "tanh", 1, 64, classification=False)
    generator = torch.Generator().manual_seed(0)
    method = MCDropout(rate=0.5, learning_rate=0.0)
    state = method.start(task, generator)
    x = torch.ones(1, 64, 1)
    outputs = method.outputs(task, state, x, 3, generator)
    torch.testing.assert_close(outputs, outputs[:, :, :1].expand_as(outputs))
    assert len({float(z) for z in outputs[:, 0, 0, 0]}) == 3
    target = method.outputs(task, state, x, 1000, generator).mean(0)
    for _ in range(600):
        state = method.step(task, state, x, target, generator)
    spread = method.outputs(task, state, x[:, :1], 4000, generator).var(0)[..., 0, 0]
    torch.testing.assert_close(state["noise_variance"], spread, rtol=0.2, atol=0.0)


def test_regression_learns_the_curve_and_its_noise() -> None:
    rng = np.random.default_rng(0)
    X = rng.uniform(-2, 2, size=(400, 1))
    y = 10 * np.sin(2 * X[:, 0]) + rng.normal(size=400)
    model = BaselineRegressor("mc_dropout", max_iter=1500, n_samples=64, random_state=0).fit(X[:300], y[:300])
    predictive, target = model.pred_dist(X[300:]), torch.as_tensor(y[300:])
    assert metrics.rmse(predictive, target) < 2.0
    assert 0.7 <= metrics.interval_coverage(predictive, target, 0.9) <= 1.0
    assert model.settings_["rate"] < 0.1


def test_classification() -> None:
    X, y = load_iris(return_X_y=True)
    model = BaselineClassifier("mc_dropout", max_iter=500, n_samples=64, random_state=0).fit(X, y)
    assert model.score(X, y) > 0.95
