"""MAP and deep ensembles: ridge regression on a linear model, and an ensemble that is its networks."""

from __future__ import annotations

import numpy as np
import torch
from sklearn.linear_model import LogisticRegression, Ridge

from bali_benchmarks.baselines import Method, State, Task
from bali_benchmarks.baselines.adam import adam_start, adam_step, averaged_weights
from bali_benchmarks.baselines.deep_ensemble import N_NETWORKS, DeepEnsemble
from bali_benchmarks.baselines.map import MAP


def trained(method: Method, task: Task, x: torch.Tensor, y: torch.Tensor, steps: int, noise: float) -> State:
    """With all rows in every step and the noise held where it is."""
    generator = torch.Generator().manual_seed(0)
    state = method.start(task, generator)
    for _ in range(steps):
        state = method.step(task, state, x, y, generator) | {"noise_variance": torch.full((task.members,), noise).to(x)}
    return state


def test_adam_is_torchs() -> None:
    generator = torch.Generator().manual_seed(0)
    start = torch.randn(2, 3, 4, generator=generator, dtype=torch.float64)
    reference = [torch.nn.Parameter(s.clone()) for s in start]
    optimizers = [torch.optim.Adam([p], lr=rate) for p, rate in zip(reference, (0.1, 0.01), strict=True)]
    parameters, state, history = [start], adam_start([start]), []
    for _ in range(20):
        gradient = torch.randn(2, 3, 4, generator=generator, dtype=torch.float64)
        parameters, state = adam_step(state, parameters, [gradient], torch.tensor([0.1, 0.01], dtype=torch.float64))
        for p, g, optimizer in zip(reference, gradient, optimizers, strict=True):
            p.grad = g
            optimizer.step()
        history.append(parameters[0])
    mean = start
    for t, value in enumerate(history, start=1):
        mean = mean + 10 / (t + 9) * (value - mean)
    torch.testing.assert_close(averaged_weights(state)[0], mean)
    torch.testing.assert_close(parameters[0], torch.stack([p.data for p in reference]), rtol=1e-6, atol=1e-7)


def test_a_linear_model_is_ridge_regression() -> None:
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(40, 3)), rng.normal(size=40)
    precision, noise = torch.tensor([1.0, 100.0], dtype=torch.float64), 0.5
    task = Task((3, 1), "relu", 2, 40, classification=False, dtype=torch.float64)
    x, t = torch.as_tensor(X).expand(2, -1, -1), torch.as_tensor(y)[:, None].expand(2, -1, -1)
    state = trained(MAP(learning_rate=0.01, prior_precision=precision), task, x, t, 1500, noise)
    for weight, strength in zip(state["weight.0"], precision, strict=True):
        # The bias has a prior too: a column of ones.
        ridge = Ridge(alpha=float(strength) * noise, fit_intercept=False).fit(np.column_stack([X, np.ones(40)]), y)
        np.testing.assert_allclose(weight[:, 0], ridge.coef_, rtol=1e-3, atol=1e-4)


def test_a_linear_classifier_is_logistic_regression() -> None:
    rng = np.random.default_rng(1)
    X = rng.normal(size=(60, 2))
    y = (X @ [1.0, -2.0] + rng.normal(size=60) > 0).astype(int)
    task = Task((2, 2), "relu", 1, 60, classification=True, dtype=torch.float64)
    x, t = torch.as_tensor(X)[None], torch.as_tensor(y)[None]
    state = trained(MAP(learning_rate=0.02, prior_precision=2.0), task, x, t, 1500, 1.0)
    difference = state["weight.0"][0, :, 1] - state["weight.0"][0, :, 0]
    # Two opposite columns of precision 2 are one column of precision 1.
    logistic = LogisticRegression(C=1.0, fit_intercept=False, tol=1e-10).fit(np.column_stack([X, np.ones(60)]), y)
    np.testing.assert_allclose(difference, logistic.coef_[0], rtol=1e-3)


def test_an_ensemble_is_its_networks() -> None:
    rates = torch.tensor([0.01, 0.1])
    generators = [torch.Generator().manual_seed(0) for _ in range(2)]
    task = Task((2, 4, 1), "relu", 2, 10, classification=False)
    alone = Task((2, 4, 1), "relu", 2 * N_NETWORKS, 10, classification=False)
    ensemble, networks = DeepEnsemble(learning_rate=rates), MAP(learning_rate=rates.repeat_interleave(N_NETWORKS))
    state, network_state = ensemble.start(task, generators[0]), networks.start(alone, generators[1])
    x, y = torch.randn(2, 10, 2), torch.randn(2, 10, 1)
    for _ in range(5):
        state = ensemble.step(task, state, x, y, generators[0])
        network_state = networks.step(
            alone, network_state, x.repeat_interleave(N_NETWORKS, 0), y.repeat_interleave(N_NETWORKS, 0), generators[1]
        )
    outputs = ensemble.outputs(task, state, x, 1, generators[0])
    assert outputs.shape == (N_NETWORKS, 2, 10, 1)
    assert all(value.shape[:2] == (2, N_NETWORKS) for value in state.values())
    for k in range(2):
        for i in range(N_NETWORKS):
            own = {name: value[None, k, i] for name, value in state.items()}
            one = Task((2, 4, 1), "relu", 1, 10, classification=False)
            torch.testing.assert_close(networks.outputs(one, own, x[[k]], 1, generators[0])[0, 0], outputs[i, k])
            for name, value in network_state.items():
                torch.testing.assert_close(state[name][k, i], value[k * N_NETWORKS + i])
    torch.testing.assert_close(
        ensemble.noise_variance(state), network_state["noise_variance"].reshape(2, N_NETWORKS).mean(1)
    )
