"""Global inducing points: where the posterior is known, and that a network learns."""

from __future__ import annotations

import math

import numpy as np
import torch
from scipy import stats
from sklearn.datasets import load_iris

from bali.conjugate.moments import with_ones
from bali.predictive import metrics
from bali_benchmarks.baselines import BaselineClassifier, BaselineRegressor, Task
from bali_benchmarks.baselines.global_inducing import N_INDUCING, GlobalInducing, conditional
from bali_benchmarks.baselines.perceptrons import forward, log_likelihood
from support.networks import randn, seeded
from support.oracles import STANDARD_ERRORS, array, assert_close

N, D, NOISE, PRIOR = 40, 3, 0.2, 2.0


def rows() -> tuple[torch.Tensor, torch.Tensor]:
    x = randn(1, N, D, seed=0)
    y = x @ torch.tensor([[1.0], [-0.5], [0.3]], dtype=torch.float64) + 0.4 + math.sqrt(NOISE) * randn(1, N, 1, seed=1)
    return x, y


def exact() -> tuple[np.ndarray[tuple[int, ...], np.dtype[np.float64]], np.ndarray[tuple[int, ...], np.dtype[np.float64]]]:
    """Mean and covariance of a linear regression's weights, in plain NumPy."""
    x, y = rows()
    design = np.column_stack([x[0].numpy(), np.ones(N)])
    precision = design.T @ design / NOISE + np.eye(D + 1) * (D + 1) / PRIOR
    return np.linalg.solve(precision, design.T @ y[0].numpy() / NOISE), np.linalg.inv(precision)


def parameters_at_the_rows() -> list[torch.Tensor]:
    x, y = rows()
    return [x, y, torch.full((1, N), -math.log(NOISE), dtype=torch.float64)]


def linear_task() -> Task:
    return Task((D, 1), "identity", 1, N, classification=False, dtype=torch.float64)


def test_one_layer_with_the_rows_as_inducing_points_has_the_exact_posterior() -> None:
    x, y, log_precision = parameters_at_the_rows()
    variance = torch.full((1, 1, 1), PRIOR / (D + 1), dtype=torch.float64)
    mean, factor = conditional(with_ones(x, None), y, log_precision.exp(), variance)
    expected, covariance = exact()
    assert_close(mean[0], expected)
    assert_close(np.linalg.inv(array(factor[0] @ factor[0].mT)), covariance)


def test_draws_are_from_the_exact_posterior() -> None:
    method, generator = GlobalInducing(prior_variance=PRIOR), seeded(2)
    drawn = torch.stack(
        [method.draw(linear_task(), parameters_at_the_rows(), generator)[0][0][0, :, 0] for _ in range(4000)]
    ).numpy()
    mean, covariance = exact()
    whitened = np.linalg.solve(np.linalg.cholesky(covariance), (drawn - mean[:, 0]).T)
    assert abs(whitened.mean(1)).max() < STANDARD_ERRORS / math.sqrt(4000)
    assert abs(np.cov(whitened) - np.eye(D + 1)).max() < STANDARD_ERRORS * math.sqrt(2 / 4000)


def test_the_bound_is_the_evidence_where_the_posterior_is_exact() -> None:
    """log p(y) of a linear regression is a Gaussian density; the bound's gap is the divergence from the posterior, 0."""
    x, y = rows()
    method, generator, task = GlobalInducing(prior_variance=PRIOR), seeded(3), linear_task()
    noise = torch.tensor([NOISE], dtype=torch.float64)
    bounds = []
    for _ in range(4000):
        weights, divergence = method.draw(task, parameters_at_the_rows(), generator)
        bounds.append(float(log_likelihood(task, forward(task, weights, x), y, noise).sum() - divergence))
    design = np.column_stack([x[0].numpy(), np.ones(N)])
    covariance = design @ design.T * PRIOR / (D + 1) + NOISE * np.eye(N)
    evidence = stats.multivariate_normal(cov=covariance).logpdf(y[0, :, 0].numpy())
    error = np.std(bounds) / math.sqrt(len(bounds))
    assert abs(np.mean(bounds) - evidence) < STANDARD_ERRORS * error


def test_learning_finds_the_exact_posterior() -> None:
    """Of a linear regression, from learnt inducing points, with the noise that is given."""
    x, y = rows()
    method, generator, task = GlobalInducing(prior_variance=PRIOR, learning_rate=0.02), seeded(4), linear_task()
    state = method.start(task, generator)
    for _ in range(2500):
        state = method.step(task, state, x, y, generator) | {"noise_variance": torch.tensor([NOISE], dtype=torch.float64)}
    drawn = method.draw(task, [state[f"average.{i}"] for i in range(3)], generator)[0][0]
    assert drawn.shape == (1, D + 1, 1)
    mean, covariance = exact()
    features = with_ones(state["average.0"], None)
    variance = torch.full((1, 1, 1), PRIOR / (D + 1), dtype=torch.float64)
    found, factor = conditional(features, state["average.1"], state["average.2"].exp(), variance)
    spread = np.sqrt(np.diag(covariance))
    assert abs(array(found[0, :, 0]) - mean[:, 0]).max() < 0.3 * spread.max()  # of the noise that Adam's steps leave
    learnt = np.sqrt(np.diag(np.linalg.inv(array(factor[0] @ factor[0].mT))))
    np.testing.assert_allclose(learnt, spread, rtol=0.2)  # likewise


def test_inducing_points_begin_at_rows_of_the_first_batch() -> None:
    task, method, generator = (
        Task((2, 4, 1), "tanh", 2, 20, classification=False),
        GlobalInducing(learning_rate=0.0),
        seeded(0),
    )
    x, y = torch.randn(2, 20, 2, generator=generator), torch.randn(2, 20, 1, generator=generator)
    state = method.step(task, method.start(task, generator), x, y, generator)
    inputs = state["weight.0"]
    assert inputs.shape == (2, N_INDUCING, 2)
    assert torch.equal(inputs[:, :20], x)
    assert not torch.equal(inputs[:, 20:40], x)
    assert torch.equal(state["weight.3"][:, :20], y)  # targets of the output layer


def test_a_network_learns_a_curve_and_its_noise() -> None:
    rng = np.random.default_rng(0)
    X = rng.uniform(-2, 2, size=(300, 1))
    y = 10 * np.sin(2 * X[:, 0]) + rng.normal(size=300)
    model = BaselineRegressor("global_inducing", max_iter=800, n_samples=32, random_state=0).fit(X[:200], y[:200])
    predictive, target = model.pred_dist(X[200:]), torch.as_tensor(y[200:])
    assert metrics.rmse(predictive, target) < 2.0
    assert 0.75 <= metrics.interval_coverage(predictive, target, 0.9) <= 1.0


def test_a_network_learns_classes() -> None:
    X, y = load_iris(return_X_y=True)
    model = BaselineClassifier("global_inducing", max_iter=400, n_samples=32, random_state=0).fit(X[::2], y[::2])
    assert (model.predict(X[1::2]) == y[1::2]).mean() > 0.9
