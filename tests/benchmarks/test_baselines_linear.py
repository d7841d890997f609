"""Methods of natural gradients on linear models, whose posterior is Gaussian and known."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from bali_benchmarks.baselines.kfac import KFAC
from bali_benchmarks.baselines.mean_field import MeanField
from bali_benchmarks.baselines.method import Task
from bali_benchmarks.baselines.noisy_adam import NoisyAdam
from bali_benchmarks.baselines.noisy_kfac import NoisyKFAC
from bali_benchmarks.baselines.vadam import Vadam
from bali_benchmarks.baselines.vogn import VOGN
from support.networks import randn, seeded
from support.oracles import Array, array, assert_close, assert_mean

N, D, NOISE, PRIOR = 480, 2, 0.25, 0.5  # rows, inputs, variance of the noise and of the prior
STEPS, FASTER = 900, 10.0
CURVATURE_TOLERANCE = 0.02  # relative, of a Monte Carlo average


def linear_task(members: int, n: int = N) -> Task:
    return Task((D, 1), "identity", members, n, classification=False, dtype=torch.float64)


def linear_rows() -> tuple[Tensor, Tensor]:
    """Rows of a correlated design in pairs with residuals +σ and −σ: the observed squares are what the model expects."""
    half = randn(N // 2, D, seed=0) @ torch.tensor([[1.0, 0.6], [0.0, 0.8]], dtype=torch.float64)
    signal = half @ torch.tensor([[1.0], [-0.5]], dtype=torch.float64) + 0.3
    spread = math.sqrt(NOISE)
    return half.repeat(2, 1), torch.cat([signal + spread, signal - spread])


def ridge(x: Tensor, y: Tensor, kl_weight: float = 1.0) -> tuple[Array, Array]:
    """Mean and precision of the Gaussian posterior of (weights, bias), with the likelihood to the power 1/λ."""
    x1 = np.hstack([array(x), np.ones((len(x), 1))])
    precision = x1.T @ x1 / (NOISE * kl_weight) + np.eye(D + 1) / PRIOR
    return np.linalg.solve(precision, x1.T @ array(y) / (NOISE * kl_weight)), precision


def run(method: MeanField | KFAC, task: Task, x: Tensor, y: Tensor, *, batch: int, keep: Sequence[str]) -> dict[str, Array]:
    """States of the last third of the steps, averaged; batches with replacement (all rows if `batch` is their number)."""
    generator = seeded(7)
    fixed = torch.full((task.members,), NOISE, dtype=torch.float64)
    state = method.start(task, generator) | {"noise_variance": fixed}
    if "mean" in state:  # a few standard deviations from where it should go: Adam's small steps would take long from afar
        state["mean"] = torch.full_like(state["mean"], 0.2) + torch.as_tensor(ridge(x, y)[0][:, 0])
    sums = {name: torch.zeros_like(state[name]) for name in keep}
    for step in range(STEPS):
        rows = torch.randint(len(x), (task.members, batch), generator=generator)
        if batch == len(x):
            rows = torch.arange(batch).expand(task.members, -1)
        # First in large steps to where it should be, then in small ones, whose own noise is small beside the posterior's.
        now = replace(method, learning_rate=FASTER * method.learning_rate) if 3 * step < STEPS else method
        state = now.step(task, state, x[rows], y[rows], generator) | {"noise_variance": fixed}
        if 3 * step >= 2 * STEPS:
            sums = {name: total + state[name] for name, total in sums.items()}
    return {name: array(total / (STEPS // 3)) for name, total in sums.items()}


def squared_gradient(x: Tensor, y: Tensor, batch: int, kl_weight: float) -> Array:
    """f = E[g²] for batches of rows drawn with replacement, where w ~ N(ridge, λ/N (f + γ)⁻¹) depends on f itself."""
    x1, mean = np.hstack([array(x), np.ones((len(x), 1))]), ridge(x, y, kl_weight)[0]
    residual = array(y) - x1 @ mean
    second = x1.T @ x1 / len(x1)
    f = np.ones(D + 1)
    for _ in range(200):
        variance = kl_weight / N / (f + kl_weight / (N * PRIOR))
        of_rows = (x1**2 * (residual**2 + (x1**2 @ variance)[:, None])).mean(0) / NOISE**2
        of_mean = ((x1 * residual).mean(0) ** 2 + second**2 @ variance) / NOISE**2
        f = of_rows / batch + (1.0 - 1.0 / batch) * of_mean
    return np.asarray(f)


def assert_near(found: Array, expected: Array, relative: float) -> None:
    np.testing.assert_allclose(found, expected, rtol=relative)


# --- independent weights --------------------------------------------------------------------------------------------


def test_vogn_reaches_the_diagonal_gaussian_posterior() -> None:
    x, y = linear_rows()
    method = VOGN(learning_rate=0.01, prior_variance=PRIOR, beta1=0.0, beta2=0.05, initial_curvature=4.0)
    found = run(method, linear_task(16), x, y, batch=N, keep=["mean", "curvature"])
    mean, precision = ridge(x, y)
    assert_mean(found["mean"], mean[:, 0])
    curvature = found["curvature"].mean(0)
    assert_near(curvature, squared_gradient(x, y, 1, 1.0), CURVATURE_TOLERANCE)
    # Squared residuals contain the weights' own variance too, here about a hundredth of the noise.
    assert_near(N * curvature + 1 / PRIOR, np.diag(precision), 2 * CURVATURE_TOLERANCE)


@pytest.mark.parametrize("batch", [1, 6])
@pytest.mark.parametrize(("kind", "rate"), [(Vadam, 1e-3), (NoisyAdam, 2e-3)])
def test_squares_of_mean_gradients_are_what_adam_and_its_kin_converge_to(
    kind: type[MeanField], rate: float, batch: int
) -> None:
    x, y = linear_rows()
    settings: dict[str, Any] = {"beta2": 0.98, "initial_curvature": 4.0}
    if kind is NoisyAdam:
        settings["damping"] = 0.0
    method = kind(learning_rate=rate, prior_variance=PRIOR, **settings)
    found = run(method, linear_task(128), x, y, batch=batch, keep=["mean", "curvature"])
    mean, precision = ridge(x, y)
    assert_mean(found["mean"], mean[:, 0])
    curvature = found["curvature"].mean(0)
    assert_near(curvature, squared_gradient(x, y, batch, 1.0), CURVATURE_TOLERANCE)
    if batch == 1:  # then the mean gradient is that of a row, and the posterior that of mean field
        assert_near(N * curvature + 1 / PRIOR, np.diag(precision), 2 * CURVATURE_TOLERANCE)
    else:
        assert bool((N * curvature + 1 / PRIOR < 0.5 * np.diag(precision)).all())


@pytest.mark.parametrize("kind", [Vadam, NoisyAdam, VOGN])
def test_draws_have_the_variance_that_the_curvature_says(kind: type[MeanField]) -> None:
    task, kl_weight = linear_task(4000), 0.3
    method = kind(kl_weight=kl_weight, prior_variance=PRIOR, initial_curvature=2.0)
    state = method.start(task, seeded(0))
    state["count"] += 5000.0  # past VOGN's annealing
    drawn = array(method.draw(task, state, seeded(1)) - state["mean"])
    expected = 1 / (N * (2.0 + kl_weight / (N * PRIOR))) * (1.0 if kind is VOGN else kl_weight)
    assert_mean(drawn**2, np.full(D + 1, expected))


def test_vogns_kl_weight_is_annealed_in_a_line() -> None:
    task = linear_task(1)
    method = VOGN(prior_variance=PRIOR, initial_kl_weight=0.1, kl_weight=1.0, annealing_steps=100.0)
    state = method.start(task, seeded(0))
    for count, weight in [(0, 0.1), (50, 0.55), (100, 1.0), (900, 1.0)]:
        found = method.prior_curvature(task, state | {"count": torch.full((1,), float(count), dtype=torch.float64)})
        assert_close(found, torch.full((1, 1), weight / (N * PRIOR), dtype=torch.float64))


# --- Kronecker factors ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kl_weight", [1.0, 0.3])
def test_noisy_kfac_reaches_the_gaussian_posterior_of_one_layer(kl_weight: float) -> None:
    x, y = linear_rows()
    task = linear_task(16)
    method = NoisyKFAC(learning_rate=0.05, prior_variance=PRIOR, damping=0.0, trust=math.inf, kl_weight=kl_weight, refresh=5)
    found = run(method, task, x, y, batch=N, keep=["weight.0", "input_root.0", "gradient_root.0"])
    assert_mean(found["weight.0"], ridge(x, y, kl_weight)[0])
    covariance = kl_weight / N * posterior_shape(found)
    x1 = np.hstack([array(x), np.ones((N, 1))])
    gamma = kl_weight / (N * PRIOR)
    pi = math.sqrt(np.trace(x1.T @ x1 / N) / (D + 1) * NOISE)
    damped = (x1.T @ x1 / N + pi * math.sqrt(gamma) * np.eye(D + 1)) * (1 / NOISE + math.sqrt(gamma) / pi)
    assert_close(covariance, kl_weight / N * np.linalg.inv(damped), 1e-8)


def test_noisy_kfacs_covariance_is_the_exact_one_under_a_vague_prior() -> None:
    x, y = linear_rows()
    task = linear_task(1)
    method = NoisyKFAC(prior_variance=1e16, damping=0.0)
    found = run(method, task, x, y, batch=N, keep=["input_root.0", "gradient_root.0"])
    x1 = np.hstack([array(x), np.ones((N, 1))])
    assert_close(posterior_shape(found) / N, NOISE * np.linalg.inv(x1.T @ x1), 1e-7)


def posterior_shape(found: dict[str, Array]) -> Array:
    """R ⊗ Σ of the only layer of the first member, from the roots that draws are made with."""
    r, s = found["input_root.0"][0], found["gradient_root.0"][0]
    return np.kron(r @ r.T, s @ s.T)


def test_noisy_kfac_draws_have_the_kronecker_covariance() -> None:
    task = replace(linear_task(1), layer_sizes=(D, 2))
    x = randn(1, N, D, seed=0)
    y = randn(1, N, 2, seed=1)
    method = NoisyKFAC(kl_weight=0.5)
    state = method.step(task, method.start(task, seeded(0)), x, y, seeded(1))
    generator = seeded(2)
    drawn = np.stack([array(method.used_weights(task, state, generator)[0][0] - state["weight.0"][0]) for _ in range(4000)])
    flat = drawn.reshape(len(drawn), -1)
    expected = 0.5 / N * posterior_shape({name: array(value) for name, value in state.items()})
    assert_mean(flat[:, :, None] * flat[:, None, :], expected)


def test_kfac_on_one_layer_is_newtons_method() -> None:
    """One full step without damping, from anywhere, lands on least squares."""
    x, y = linear_rows()
    task = linear_task(3)
    method = KFAC(learning_rate=1.0, prior_variance=math.inf, damping=0.0, trust=math.inf)
    state = method.start(task, seeded(3))
    state = method.step(task, state, x.expand(3, -1, -1), y.expand(3, -1, -1), seeded(0))
    x1 = np.hstack([array(x), np.ones((N, 1))])
    expected = np.linalg.lstsq(x1, array(y), rcond=None)[0]
    assert_close(state["weight.0"], np.broadcast_to(expected, (3, D + 1, 1)), 1e-9)
