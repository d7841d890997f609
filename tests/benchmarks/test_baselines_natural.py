"""Methods of natural gradients: FOOF against BALI's mean, and what holds for every one of them."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

import bali
from bali.predictive.likelihoods import Gaussian
from bali_benchmarks.baselines.foof import FOOF
from bali_benchmarks.baselines.gradients import gradient_rows
from bali_benchmarks.baselines.kfac import KFAC
from bali_benchmarks.baselines.method import Method, State, Task
from bali_benchmarks.baselines.noisy_adam import NoisyAdam
from bali_benchmarks.baselines.noisy_kfac import NoisyKFAC
from bali_benchmarks.baselines.perceptrons import unpacked
from bali_benchmarks.baselines.vadam import Vadam
from bali_benchmarks.baselines.vogn import VOGN
from support.networks import data, mlp, randn, seeded
from support.oracles import assert_close

METHODS: list[type[Method]] = [NoisyAdam, Vadam, VOGN, KFAC, NoisyKFAC, FOOF]


# --- FOOF and BALI --------------------------------------------------------------------------------------------------


def test_foof_on_one_layer_is_bali_without_noise() -> None:
    """Mini-batch after mini-batch: averages of the inputs' moments, steps of the mean, pull of the prior."""
    x, y = data("gaussian", 60, 3, 2)
    module = mlp((3, 2), seed=4)
    inference = bali.LayerwiseInference(module, Gaussian(), 60, reparam="none", target_noise=False, prior_variance=0.2)
    task = Task((3, 2), "identity", 1, 60, classification=False, dtype=torch.float64)
    state = FOOF(refresh=1).start(task, seeded(0))
    state["weight.0"] = inference.state.layers["0"].weights[None].clone()
    shrinkage = float(inference.state.layers["0"].prior.precision.diagonal()[0]) / 60
    for t in range(1, 6):
        rows = torch.randperm(60, generator=seeded(t))[:20]
        inference.step(x[rows], y[rows], 1.0 / t)
        method = FOOF(1.0 / t, damping=shrinkage, weight_decay=shrinkage, trust=math.inf, ema_rate=0.0, refresh=1)
        state = method.step(task, state, x[None, rows], y[None, rows], seeded(0))
        assert_close(state["weight.0"][0], inference.posteriors["0"].mean)


def test_foof_on_a_hidden_layer_is_bali_up_to_the_scale_of_the_gradients() -> None:
    """BALI's hidden layers move by FOOF's step with each output's gradients over their root mean square."""
    n, step_size = 50, 0.7
    x, y = data("gaussian", n, 3, 2)
    module = mlp((3, 4, 2), seed=4)
    inference = bali.LayerwiseInference(
        module, Gaussian(), n, reparam="none", target_noise=False, step_size=step_size, prior_variance=0.2
    )
    before = {name: inference.state.layers[name].weights.clone() for name in ("0", "2")}
    inference.step(x, y)
    moved = {name: inference.posteriors[name].mean - w for name, w in before.items()}
    shrinkage = float(inference.state.layers["0"].prior.precision.diagonal()[0]) / n
    task = Task((3, 4, 2), "tanh", 1, n, classification=False, dtype=torch.float64)
    weights = [w[None] for w in before.values()]
    start = FOOF().start(task, seeded(0)) | {f"weight.{i}": w for i, w in enumerate(weights)}

    def step_of(weight_decay: float) -> list[Tensor]:
        method = FOOF(1.0, damping=shrinkage, weight_decay=weight_decay, trust=math.inf)
        after = unpacked(method.step(task, start, x[None], y[None], seeded(0)))
        return [a[0] - b[0] for a, b in zip(after, weights, strict=True)]

    by_gradient, with_pull = step_of(0.0), step_of(shrinkage)
    gradients = gradient_rows(task, weights, x[None], y[None], torch.ones(1, dtype=torch.float64)).gradients[0][0]
    scale = step_size / gradients.square().mean(0).sqrt()
    assert_close(moved["0"], by_gradient[0] * scale + (with_pull[0] - by_gradient[0]), 1e-8)


# --- all of them ----------------------------------------------------------------------------------------------------


def small_problem(members: int, *, classification: bool) -> tuple[Task, Tensor, Tensor]:
    task = Task((2, 12, 3 if classification else 1), "relu", members, 200, classification)
    x = randn(members, 200, 2, seed=3, dtype=torch.float32)
    if classification:
        return task, x, (x[..., 0] > 0).long() + (x[..., 1] > 0.3).long()
    return task, x, x[..., :1].sin() + 0.5 * x[..., 1:].abs() - 0.4


def trained(method: Method, task: Task, x: Tensor, y: Tensor, steps: int) -> State:
    generator = seeded(0)
    state = method.start(task, generator)
    for _ in range(steps):
        rows = torch.randint(200, (50,), generator=generator)
        state = method.step(task, state, x[:, rows], y[:, rows], generator)
    return state


@pytest.mark.parametrize("kind", METHODS)
@pytest.mark.parametrize("classification", [False, True])
def test_every_method_learns_with_some_of_its_six_settings(kind: type[Method], classification: bool) -> None:
    assert len({tuple(settings.items()) for settings in kind.grid}) == len(kind.grid) == 6
    assert all(set(settings) == set(kind.grid[0]) for settings in kind.grid)
    task, x, y = small_problem(6, classification=classification)
    method = kind(**{name: torch.tensor([settings[name] for settings in kind.grid]) for name in kind.grid[0]})
    state = trained(method, task, x, y, 400)
    outputs = method.outputs(task, state, x, 20, seeded(1))
    assert outputs.shape[1:] == (6, 200, task.layer_sizes[-1])
    assert all(bool(value.isfinite().all()) for value in state.values())
    if classification:
        accuracy = (outputs.softmax(-1).mean(0).argmax(-1) == y).float().mean(1)
        assert float(accuracy.max()) > 0.92
        assert torch.equal(method.noise_variance(state), torch.ones(6))
    else:
        unexplained = (outputs.mean(0) - y).square().mean((1, 2)) / y.var((1, 2))
        best = int(unexplained.argmin())
        assert float(unexplained[best]) < 0.05
        assert float(method.noise_variance(state)[best] / y[best].var()) < 0.2


@pytest.mark.parametrize("kind", METHODS)
def test_members_have_their_own_rows_and_settings(kind: type[Method]) -> None:
    """Other rows and settings of its neighbours change nothing for a member, and its own setting is the one it is given."""
    task, x, y = small_problem(3, classification=False)
    first, second = kind.grid[0], kind.grid[-1]
    settings = {name: torch.tensor([first[name], second[name], second[name]]) for name in first}
    alone = trained(kind(**first), task, x, y, 15)
    x[1:], y[1:] = 0.5 * x[1:].flip(1), -y[1:]
    beside = trained(kind(**settings), task, x, y, 15)
    for name, value in alone.items():
        torch.testing.assert_close(value[0], beside[name][0], rtol=1e-4, atol=1e-5)
    weights = "mean" if "mean" in alone else "weight.0"
    assert not torch.allclose(alone[weights][1], beside[weights][1], atol=1e-3)


@pytest.mark.parametrize("kind", METHODS)
def test_a_step_leaves_the_old_state_alone_and_needs_nothing_but_the_generator(kind: type[Method]) -> None:
    task, x, y = small_problem(3, classification=False)
    method = kind(**kind.grid[0])
    state = trained(method, task, x, y, 3)
    kept = {name: value.clone() for name, value in state.items()}
    first, again = (method.step(task, state, x, y, seeded(5)) for _ in range(2))
    for name, value in state.items():
        assert torch.equal(value, kept[name])
        assert torch.equal(first[name], again[name])
        assert len(value) == task.members
        assert not value.requires_grad
