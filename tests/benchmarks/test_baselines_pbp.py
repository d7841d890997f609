"""Probabilistic backpropagation: its moments, its gradients, and the exact answers it must give where there are any."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import integrate
from torch import Tensor

from bali_benchmarks.baselines.method import State, Task
from bali_benchmarks.baselines.moment_propagation import (
    Weight,
    backward_moments,
    forward_moments,
    layer_moments,
    rectified_moments,
)
from bali_benchmarks.baselines.pbp import PBP, matched_gamma, refined_prior

FD_STEP, FD_TOLERANCE = 1e-6, 1e-6
MC_DRAWS = 400_000


def task_of(*sizes: int, members: int = 2, n_data: int = 40, activation: str = "relu") -> Task:
    return Task(sizes, activation, members, n_data, classification=False)


def random_weights(*sizes: int, members: int = 2, seed: int = 0) -> list[Weight]:
    g = torch.Generator().manual_seed(seed)
    shapes = [(members, n_in + 1, n_out) for n_in, n_out in itertools.pairwise(sizes)]
    return [
        (torch.randn(shape, generator=g, dtype=torch.float64), 0.1 + torch.rand(shape, generator=g, dtype=torch.float64))
        for shape in shapes
    ]


def rows(n: int, n_in: int, members: int = 2, seed: int = 1) -> tuple[Tensor, Tensor]:
    g = torch.Generator().manual_seed(seed)
    x = torch.randn(members, n, n_in, generator=g)
    y = (x.sum(-1, keepdim=True) + 0.3 * torch.randn(members, n, 1, generator=g)) / math.sqrt(n_in + 0.1)
    return x, y


@settings(max_examples=30, deadline=None)
@given(st.floats(-6, 6), st.floats(0.05, 4))
def test_rectified_moments_are_the_integrals(m: float, deviation: float) -> None:
    def density(a: float) -> float:
        return math.exp(-0.5 * ((a - m) / deviation) ** 2) / (deviation * math.sqrt(2 * math.pi))

    upper = max(0.0, m) + 12 * deviation

    def integral(power: int) -> float:
        return integrate.quad(lambda a: a**power * density(a), 0, upper, points=[max(0.0, m)], epsabs=1e-13)[0]

    got = rectified_moments(torch.tensor([m], dtype=torch.float64), torch.tensor([deviation**2], dtype=torch.float64))
    assert float(got.mean) == pytest.approx(integral(1), rel=1e-7, abs=1e-10)
    assert float(got.variance) == pytest.approx(integral(2) - integral(1) ** 2, rel=1e-6, abs=1e-10)


def test_far_units_are_off_or_linear() -> None:
    v = torch.full((2,), 2.0, dtype=torch.float64)
    got = rectified_moments(torch.tensor([-1e3, 1e3], dtype=torch.float64), v)
    np.testing.assert_allclose(got.mean, [0.0, 1e3])
    np.testing.assert_allclose(got.variance, [0.0, 2.0], rtol=1e-9)


def test_moments_of_one_layer_agree_with_draws() -> None:
    g = torch.Generator().manual_seed(0)
    ((mean, variance),) = random_weights(3, 2, members=1)
    u = torch.randn(1, 1, 4, generator=g, dtype=torch.float64)
    s = torch.rand(1, 1, 4, generator=g, dtype=torch.float64)
    m, v = layer_moments((mean, variance), u, u.square() + s, s)
    w = mean + variance.sqrt() * torch.randn(MC_DRAWS, 4, 2, generator=g, dtype=torch.float64)
    z = u + s.sqrt() * torch.randn(MC_DRAWS, 1, 4, generator=g, dtype=torch.float64)
    draws = (z @ w)[:, 0]
    np.testing.assert_allclose(m[0, 0], draws.mean(0), atol=5 * float(v.max() / MC_DRAWS) ** 0.5)
    np.testing.assert_allclose(v[0, 0], draws.var(0), rtol=0.02)


def test_one_hidden_layer_agrees_with_drawn_networks() -> None:
    """Exact for one hidden layer, where units given an input are independent, but for the Gaussian form of the output."""
    task, method = task_of(3, 8, 1, members=1), PBP()
    g = torch.Generator().manual_seed(0)
    state = method.start(task, g)
    x = torch.randn(1, 1, 3, generator=g)
    m, v = method.moments(task, state, x)
    first, last = state["mean"][:, :32].view(4, 8), state["mean"][:, 32:].view(9, 1)
    deviation = float(state["variance"][0, 0]) ** 0.5
    w_first = first + deviation * torch.randn(MC_DRAWS // 4, 4, 8, generator=g, dtype=torch.float64)
    w_last = last + deviation * torch.randn(MC_DRAWS // 4, 9, 1, generator=g, dtype=torch.float64)
    ones = torch.ones(MC_DRAWS // 4, 1, 1, dtype=torch.float64)
    hidden = (torch.cat([x.double().expand(MC_DRAWS // 4, 1, 3), ones], -1) / 2.0 @ w_first).relu()
    draws = (torch.cat([hidden, ones], -1) / 3.0 @ w_last).flatten()
    assert float(m) == pytest.approx(float(draws.mean()), abs=5 * float(v / len(draws)) ** 0.5)
    assert float(v) == pytest.approx(float(draws.var()), rel=0.03)


@pytest.mark.parametrize("sizes", [(3, 1), (3, 5, 1), (3, 5, 4, 1)])
def test_gradients_agree_with_finite_differences(sizes: tuple[int, ...]) -> None:
    weights = random_weights(*sizes)
    u = torch.randn(2, 1, 4, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    y, noise = 0.7, 0.3

    def log_z() -> Tensor:
        last = forward_moments(weights, u)[-1]
        v = last.variance + noise
        return -0.5 * (v.log() + (y - last.mean).square() / v).flatten()

    tape = forward_moments(weights, u)
    v = tape[-1].variance + noise
    d_m = (y - tape[-1].mean) / v
    gradients = [(torch.zeros_like(mean), torch.zeros_like(variance)) for mean, variance in weights]
    backward_moments(weights, tape, d_m, 0.5 * (d_m.square() - 1 / v), gradients)
    for weight, gradient in zip(weights, gradients, strict=True):
        for value, slope in zip(weight, gradient, strict=True):
            for i in range(value[0].numel()):
                entry = value.view(2, -1)[:, i]
                entry += FD_STEP
                above = log_z()
                entry -= 2 * FD_STEP
                below = log_z()
                entry += FD_STEP
                difference = (above - below) / (2 * FD_STEP)
                np.testing.assert_allclose(slope.view(2, -1)[:, i], difference, atol=FD_TOLERANCE)


def test_one_row_of_a_linear_model_is_the_kalman_filter() -> None:
    task, method = task_of(4, 1), PBP()
    g = torch.Generator().manual_seed(0)
    start = method.start(task, g)
    x, y = rows(1, 4)
    after = method.step(task, start, x, y, g)
    design = torch.cat([x, torch.ones(2, 1, 1)], -1).double()[:, 0] / math.sqrt(5)
    prior_mean, prior_variance = start["mean"], start["variance"]
    total = (design.square() * prior_variance).sum(-1) + method.noise_variance(start)
    gain = prior_variance * design / total[:, None]
    error = y[:, 0, 0].double() - (design * prior_mean).sum(-1)
    torch.testing.assert_close(after["mean"], prior_mean + gain * error[:, None])
    torch.testing.assert_close(after["variance"], prior_variance - gain * design * prior_variance)
    assert torch.equal(start["rows_seen"], torch.zeros(2, dtype=torch.float64))  # the state that was given is as it was


def test_one_pass_over_a_linear_model_is_near_bayesian_linear_regression() -> None:
    """With the noise as good as known; the weights' correlations are small here, so that leaving them out costs little."""
    n, noise = 300, 0.3**2 / 3.1
    task, method = task_of(3, 1, n_data=n + 1), PBP()  # one row short of a pass: before the prior is refined
    g = torch.Generator().manual_seed(0)
    sure = torch.full((2,), 1e8, dtype=torch.float64)
    start = method.start(task, g) | {"noise_shape": sure, "noise_rate": noise * (sure - 1)}
    x, y = rows(n, 3)
    after = method.step(task, start, x, y, g)
    design = torch.cat([x, torch.ones(2, n, 1)], -1).double() / 2.0
    precision = torch.diag_embed(1 / start["variance"]) + design.mT @ design / noise
    shift = start["mean"] / start["variance"] + (design.mT @ y.double() / noise)[..., 0]
    exact_mean = torch.linalg.solve(precision, shift)
    exact_variance = 1 / precision.diagonal(dim1=-2, dim2=-1)
    np.testing.assert_allclose((after["mean"] - exact_mean) / exact_variance.sqrt(), 0.0, atol=1.0)
    np.testing.assert_allclose(after["variance"], exact_variance, rtol=0.15)


def test_the_noise_of_a_linear_model_is_learnt() -> None:
    n, noise = 300, 0.3**2 / 3.1
    task, method = task_of(3, 1, n_data=n), PBP()
    g = torch.Generator().manual_seed(0)
    x, y = rows(n, 3)
    state = method.start(task, g)
    distances = []
    for _ in range(4):
        state = method.step(task, state, x, y, g)
        distances.append(float((method.noise_variance(state) / noise).log().abs().max()))
    assert distances == sorted(distances, reverse=True)
    assert distances[-1] < 0.5


def test_gamma_matches_integrated_moments() -> None:
    """Where the other variance is 0, the posterior of a precision is Gamma(a + 1/2, b + e²/2): the match is near it."""
    shape, rate = torch.tensor([60.0], dtype=torch.float64), torch.tensor([50.0], dtype=torch.float64)
    squared = torch.tensor([3.0], dtype=torch.float64)
    a, b = matched_gamma(shape, rate, squared, torch.zeros(1, dtype=torch.float64))
    assert float(a / b) == pytest.approx(60.5 / 51.5, rel=1e-3)
    assert float(a) == pytest.approx(60.5, rel=0.03)


def test_gamma_stays_where_no_gamma_has_the_moments() -> None:
    shape, rate = torch.tensor([2.0], dtype=torch.float64), torch.tensor([1e-3], dtype=torch.float64)
    a, b = matched_gamma(shape, rate, torch.tensor([float("inf")]), torch.ones(1))
    assert (float(a), float(b)) == (2.0, 1e-3)


def one_weight(mean: float, variance: float, shape: float, rate: float) -> State:
    def entry(value: float) -> Tensor:
        return torch.tensor([[value]], dtype=torch.float64)

    return {
        "mean": entry(mean),
        "variance": entry(variance),
        "prior_shape": entry(shape)[0],
        "prior_rate": entry(rate)[0],
        "factor_precision": entry((shape - 1) / rate),
        "factor_shape": entry(0.0),
        "factor_rate": entry(0.0),
    }


def test_refined_prior_of_one_weight_is_its_own_fixed_point() -> None:
    once = refined_prior(one_weight(1.5, 0.2, 6.0, 6.0))
    twice = refined_prior(once)
    for key, value in once.items():
        torch.testing.assert_close(twice[key], value, msg=key)
    assert float(once["prior_shape"]) > 6.0  # it has seen a weight


def test_refined_prior_takes_in_a_known_precision() -> None:
    """With λ known to be 4, cavity N(m, v) times N(0, 1/4), as for Gaussians."""
    state = one_weight(1.0, 0.2, 4e8, 1e8) | {"factor_precision": torch.tensor([[0.5]], dtype=torch.float64)}
    after = refined_prior(state)
    assert float(after["variance"]) == pytest.approx(1 / (1 / 0.2 - 0.5 + 4.0))
    assert float(after["mean"]) == pytest.approx((1.0 / 0.2) / (1 / 0.2 - 0.5 + 4.0))


def test_weights_without_a_proper_cavity_stay() -> None:
    state = one_weight(1.0, 2.0, 6.0, 6.0)  # wider than the prior's factor alone
    after = refined_prior(state)
    for key, value in state.items():
        assert torch.equal(after[key], value), key


def test_mini_batches_are_only_a_grouping_and_a_pass_refines_the_prior() -> None:
    task, method = task_of(3, 6, 1, n_data=20), PBP()
    g = torch.Generator().manual_seed(0)
    start = method.start(task, g)
    x, y = rows(20, 3)
    whole = method.step(task, start, x, y, g)
    half = method.step(task, start, x[:, :10], y[:, :10], g)
    assert torch.equal(half["factor_precision"], start["factor_precision"])
    halves = method.step(task, half, x[:, 10:], y[:, 10:], g)
    assert not torch.equal(halves["factor_precision"], start["factor_precision"])
    for key, value in whole.items():
        torch.testing.assert_close(halves[key], value, msg=key)


def test_members_do_not_see_each_other() -> None:
    task, method = task_of(3, 6, 1, n_data=20, members=3), PBP()
    g = torch.Generator().manual_seed(0)
    start = method.start(task, g)
    x, y = rows(20, 3, members=3)
    together = method.step(task, start, x, y, g)
    one = {key: value[1:2] for key, value in start.items()}
    alone = method.step(task_of(3, 6, 1, n_data=20, members=1), one, x[1:2], y[1:2], g)
    for key, value in alone.items():
        torch.testing.assert_close(together[key][1:2], value, msg=key)


def test_outputs_have_the_moments_that_were_propagated() -> None:
    task, method = task_of(3, 6, 1), PBP()
    g = torch.Generator().manual_seed(0)
    state = method.start(task, g)
    x, _ = rows(5, 3)
    m, v = method.moments(task, state, x)
    draws = method.outputs(task, state, x, 500, g)
    assert draws.shape == (500, 2, 5, 1)
    assert draws.dtype == torch.float32
    np.testing.assert_allclose(draws.mean(0), m, atol=0.01 * float(v.max()) ** 0.5)
    np.testing.assert_allclose(draws.var(0), v, rtol=0.03)


@pytest.mark.parametrize(
    ("task", "words"),
    [
        (task_of(3, 6, 1, activation="tanh"), "relu"),
        (task_of(3, 6, 2), "one target"),
        (Task((3, 6, 2), "relu", 1, 40, classification=True), "regression only"),
    ],
)
def test_what_it_cannot_do_is_said(task: Task, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        PBP().start(task, torch.Generator())
