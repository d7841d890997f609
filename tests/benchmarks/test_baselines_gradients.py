"""Gradients row by row against autograd, torch.func and finite differences; K-FAC's algebra against dense formulas."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from torch import Tensor
from torch.func import grad, vmap

from bali_benchmarks.baselines import curvature
from bali_benchmarks.baselines.gradients import gradient_rows
from bali_benchmarks.baselines.method import Task
from bali_benchmarks.baselines.perceptrons import forward, initial_weights, log_likelihood
from support.networks import randn, seeded
from support.oracles import STANDARD_ERRORS, assert_close, fast, seeds

MEMBERS, ROWS = 2, 7
NOISE = torch.tensor([0.3, 2.0], dtype=torch.float64)


def task_of(sizes: tuple[int, ...], activation: str, *, classification: bool, members: int = MEMBERS) -> Task:
    return Task(sizes, activation, members, 100, classification, torch.float64)


TASKS = [
    task_of((3, 4, 1), "relu", classification=False),
    task_of((3, 5, 4, 2), "tanh", classification=False),
    task_of((2, 4, 3), "leaky_tanh", classification=True),
    task_of((3, 1), "identity", classification=False),
]


def problem(task: Task, seed: int = 0) -> tuple[list[Tensor], Tensor, Tensor]:
    """Weights with biases that are not zero, inputs and targets."""
    weights = [w + 0.1 for w in initial_weights(task, seeded(seed))]
    x = randn(task.members, ROWS, task.layer_sizes[0], seed=seed + 1)
    if task.classification:
        return weights, x, torch.randint(task.layer_sizes[-1], (task.members, ROWS), generator=seeded(seed + 2))
    return weights, x, randn(task.members, ROWS, task.layer_sizes[-1], seed=seed + 2)


def total_log_likelihood(task: Task, weights: list[Tensor], x: Tensor, y: Tensor) -> Tensor:
    """Mean over rows, summed over members, so that its gradient holds every member's own."""
    return log_likelihood(task, forward(task, weights, x), y, NOISE).mean(1).sum()


@pytest.mark.parametrize("task", TASKS)
def test_weight_gradients_are_autograds(task: Task) -> None:
    weights, x, y = problem(task)
    leaves = [w.clone().requires_grad_() for w in weights]
    expected = torch.autograd.grad(total_log_likelihood(task, leaves, x, y), leaves)
    rows = gradient_rows(task, weights, x, y, NOISE)
    for found, wanted in zip(rows.weight_gradients(), expected, strict=True):
        assert_close(found, wanted)
    assert_close(rows.outputs, forward(task, weights, x))


@pytest.mark.parametrize("task", TASKS)
def test_weight_gradients_are_slopes(task: Task) -> None:
    weights, x, y = problem(task)
    directions = [randn(*w.shape, seed=9) for w in weights]
    step = 1e-6
    ends = [
        total_log_likelihood(task, [w + s * step * d for w, d in zip(weights, directions, strict=True)], x, y)
        for s in (1, -1)
    ]
    gradients = gradient_rows(task, weights, x, y, NOISE).weight_gradients()
    slope = sum(float((g * d).sum()) for g, d in zip(gradients, directions, strict=True))
    assert slope == pytest.approx(float(ends[0] - ends[1]) / (2 * step), rel=1e-6, abs=1e-8)


@pytest.mark.parametrize("task", TASKS)
def test_squared_gradients_are_those_of_single_rows(task: Task) -> None:
    """torch.func forms every row's gradient; the package never does."""
    weights, x, y = problem(task)

    def of_row(member_weights: list[Tensor], row: Tensor, target: Tensor, noise: Tensor) -> Tensor:
        stacked = [w[None] for w in member_weights]
        return log_likelihood(task, forward(task, stacked, row[None, None]), target[None, None], noise[None]).sum()

    per_row = vmap(vmap(grad(of_row), (None, 0, 0, None)))(weights, x, y, NOISE)
    found = gradient_rows(task, weights, x, y, NOISE).squared_gradients()
    for squares, gradients in zip(found, per_row, strict=True):
        assert_close(squares, gradients.square().mean(1))


def test_drawn_targets_of_one_output_give_the_fisher_matrix_exactly() -> None:
    """Gauss and Newton's matrix of a network with one output: Jacobians squared over the noise."""
    task = TASKS[0]
    weights, x, y = problem(task)
    rows = gradient_rows(task, weights, x, y, NOISE, fisher=seeded(0))
    residual = (y - rows.outputs) / NOISE[:, None, None]
    for drawn, observed in zip(rows.fisher_gradients, rows.gradients, strict=True):
        jacobian = observed / residual
        assert_close(curvature.second_moments(drawn), curvature.second_moments(jacobian) / NOISE[:, None, None])


@pytest.mark.parametrize("classification", [False, True])
def test_drawn_targets_give_the_fisher_matrix_of_several_outputs_on_average(classification: bool) -> None:
    task = task_of((2, 3), "identity", classification=classification, members=20_000)
    logits = torch.tensor([0.5, -1.0, 0.2], dtype=torch.float64)
    weights = [torch.zeros(task.members, 3, 3, dtype=torch.float64)]
    weights[0][:, -1] = logits
    x = torch.zeros(task.members, 1, 2, dtype=torch.float64)
    y = torch.zeros(task.members, 1, dtype=torch.long) if classification else torch.zeros(task.members, 1, 3).double()
    noise = torch.full((task.members,), 0.3, dtype=torch.float64)
    drawn = gradient_rows(task, weights, x, y, noise, fisher=seeded(1)).fisher_gradients[0]
    p = logits.softmax(0)
    expected = torch.diag(p) - torch.outer(p, p) if classification else torch.eye(3).double() / 0.3
    products = curvature.second_moments(drawn)
    error = products.std(0) / math.sqrt(task.members)
    assert bool(((products.mean(0) - expected).abs() <= STANDARD_ERRORS * error + 1e-12).all())


def spd(seed: int, size: int) -> Tensor:
    rows = randn(MEMBERS, size + 3, size, seed=seed)
    return curvature.second_moments(rows)


@fast
@given(seeds)
def test_preconditioning_is_the_inverse_of_the_damped_kronecker_product(seed: int) -> None:
    a, s, gradient = spd(seed % 1000, 4), spd(seed % 1000 + 1, 3), randn(MEMBERS, 4, 3, seed=seed % 1000 + 2)
    root = torch.full((MEMBERS, 1, 1), 0.1, dtype=torch.float64)
    pi = curvature.split(a, s)
    found = curvature.preconditioned(
        gradient, curvature.inverse_root(a, pi * root, "a"), curvature.inverse_root(s, root / pi, "s")
    )
    for k in range(MEMBERS):
        eye_a, eye_s = torch.eye(4).double(), torch.eye(3).double()
        fisher = torch.kron(a[k] + float(pi[k]) * 0.1 * eye_a, s[k] + 0.1 / float(pi[k]) * eye_s)
        assert_close(found[k], torch.linalg.solve(fisher, gradient[k].flatten()).reshape(4, 3), 1e-8)


def test_the_split_of_the_damping_balances_the_two_factors() -> None:
    """With π the two cross terms of (A + π√γ I) ⊗ (S + √γ/π I) have the same trace; without gradients π stays finite."""
    a, s = spd(0, 4), spd(1, 3)
    pi = curvature.split(a, s)[:, 0, 0]
    trace_a, trace_s = (m.diagonal(dim1=1, dim2=2).mean(1) for m in (a, s))
    assert_close(trace_a / pi, pi * trace_s)
    assert bool(curvature.split(a, torch.zeros_like(s)).isfinite().all())


def test_steps_longer_than_trusted_are_shortened_to_it() -> None:
    fisher, wanted = spd(3, 4), randn(MEMBERS, 4, 1, seed=4)
    step = torch.linalg.solve(fisher, wanted)
    square = (step.mT @ fisher @ step)[:, 0, 0]
    trust = torch.tensor([0.01 * float(square[0]), 4.0 * float(square[1])], dtype=torch.float64)
    rate = curvature.trusted_rate(0.5, trust, [wanted], [step])
    assert_close(rate, torch.tensor([0.1, 0.5], dtype=torch.float64))


def test_a_plain_mean_turns_into_a_moving_average() -> None:
    counts = torch.tensor([0.0, 5.0, 10.0, 1000.0])
    assert_close(curvature.warm_rate(counts, 5, 0.05), torch.tensor([1.0, 0.5, 1 / 3, 0.05]), 1e-6)
