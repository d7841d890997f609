"""The update of stacked perceptrons: against `joint.py`, a dense reading of its formula, and SciPy's MAP estimate."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from scipy.optimize import minimize
from torch import Tensor, nn

from bali.conjugate.symmetric import Dense
from bali.inference import joint
from bali.inference.joint import JointLayer, Pace
from bali.inference.stack_update import (
    StackLayer,
    StackPass,
    advance,
    backward,
    forward,
    proposed_steps,
    take_in,
    with_known_inputs,
)
from bali.predictive.likelihoods import Bernoulli, Likelihood
from support.networks import randn, seeded
from support.oracles import assert_close
from support.tolerances import EXACT, STEPS

K, N = 3, 40
VARIANCES = (0.7, 0.3)
PACE = Pace(0.4, kl_bound=0.05, momentum=0.8, rate=0.1, damping=0.2, prior_share=0.6)
Array = NDArray[np.float64]


def start(sizes: tuple[int, ...] = (3, 5, 2), k: int = K) -> list[StackLayer]:
    return [
        StackLayer(randn(k, n_in + 1, n_out, seed=7 + place), VARIANCES[place], f"layer {place}")
        for place, (n_in, n_out) in enumerate(itertools.pairwise(sizes))
    ]


def rows() -> tuple[Tensor, Tensor, Tensor]:
    """x, gradients of a made-up loss are taken at 0/1 targets y, and weights of which each member has some zeros."""
    x = randn(N, 3, seed=1)
    y = (randn(N, 2, seed=2) > 0).double()
    weight = (torch.rand(K, N, generator=seeded(3), dtype=torch.float64) > 0.3) * (1 + torch.arange(N) % 3)
    return x, y, weight.double()


def passed(
    layers: list[StackLayer], x: Tensor, y: Tensor, weight: Tensor, likelihood: Likelihood | None = None
) -> StackPass:
    means = [layer.mean for layer in layers]
    found = forward(means, nn.Tanh(), x)
    z = found.outputs
    _, gradient = (likelihood or Bernoulli()).evaluate(z, y.expand(len(z), *y.shape))
    total = weight.sum(-1)
    share = weight / total[:, None]
    return StackPass(found.columns, backward(means, found, gradient.mT * share[:, None]), share, total)


def shares(before: list[StackLayer], after: list[StackLayer], weight: Tensor) -> Tensor:
    """Of their steps that members took, by the first weight."""
    steps, _, _ = proposed_steps(before, weight.sum(-1).reshape(-1, 1, 1), PACE)
    return (after[0].mean - before[0].mean)[:, 0, 0] / (PACE.step_size * steps[0][:, 0, 0])


def dense_steps(n_steps: int, member: int, x: Array, y: Array, weight: Array) -> list[Array]:
    """Means of one member after some steps on the same rows: the formula of `joint.py`, with inverses and loops."""
    means = [layer.mean[member].numpy().copy() for layer in start()]
    total, n_data = weight.sum(), float(weight.sum())
    ones = np.ones((len(x), 1))
    averages: list[dict[str, Array]] = [{} for _ in means]
    for step in range(1, n_steps + 1):
        first = np.concatenate([x, ones], 1)
        hidden = np.tanh(first @ means[0])
        second = np.concatenate([hidden, ones], 1)
        at_output = (y - 1.0 / (1.0 + np.exp(-second @ means[1]))) * weight[:, None]
        at_hidden = (at_output @ means[1][:-1].T) * (1.0 - hidden**2)
        proposals, divergence = [], 0.0
        for known, mean, h, g, variance in zip(
            averages, means, (first, second), (at_hidden, at_output), VARIANCES, strict=True
        ):
            new = {"A": (h * weight[:, None]).T @ h / total, "S": g.T @ g / total, "V": h.T @ g / total}
            rates = {"A": max(PACE.rate, 1 / step), "S": max(PACE.rate, 1 / step), "V": max(1 - PACE.momentum, 1 / step)}
            for name, value in new.items():
                known[name] = value if step == 1 else (1 - rates[name]) * known[name] + rates[name] * value
            delta = PACE.damping * np.diag(known["A"]).mean()
            squares = np.diag(known["S"])
            scale = np.minimum(
                PACE.step_size / np.sqrt(squares + 1e-4 * squares.mean()), delta * variance * n_data / PACE.prior_share
            )
            pull = PACE.prior_share * mean / (variance * n_data)
            change = np.linalg.inv(known["A"] + delta * np.eye(len(mean))) @ ((known["V"] - pull) * scale)
            divergence += 0.5 * float(np.trace(change.T @ known["A"] @ change @ known["S"]))
            proposals.append(change)
        share = min(1.0, (PACE.kl_bound / divergence) ** 0.5)
        means = [mean + share * change for mean, change in zip(means, proposals, strict=True)]
    return means


def test_steps_of_every_member_are_those_of_the_formula() -> None:
    """Five steps: later ones take in Gram matrices seldom, which the formula does not say."""
    x, y, weight = rows()
    layers = start()
    for step in range(1, 6):
        layers = take_in(layers, passed(layers, x, y, weight), step, PACE)
        before = layers
        layers, refused = advance(layers, weight.sum(-1), PACE)
        share = shares(before, layers, weight)
        assert ((share > 0) & (share <= 1 + 1e-9)).all()
        assert refused == 0
    for member in range(K):
        expected = dense_steps(5, member, x.numpy(), y.numpy(), weight[member].numpy())
        for layer, mean in zip(layers, expected, strict=True):
            assert_close(layer.mean[member], mean, STEPS)


def test_a_proposal_is_that_of_joint_py() -> None:
    x, y, weight = rows()
    layers = take_in(start(), passed(start(), x, y, weight), 1, PACE)
    n_data = torch.full((K,), 123.0, dtype=torch.float64)
    for layer, steps, divergences in zip(layers, *proposed_steps(layers, n_data.reshape(-1, 1, 1), PACE)[::2], strict=True):
        assert layer.inputs is not None
        assert layer.gradients is not None
        assert layer.drive is not None
        assert layer.damped is not None
        assert layer.damping is not None
        for k in range(K):
            single = JointLayer(
                layer.mean[k], None, layer.prior_variance, inputs=Dense(layer.inputs.values[k]),
                gradients=layer.gradients[k], drive=layer.drive[k], damped=Dense(layer.damped.values[k]),
                damping=layer.damping[k, 0, 0],
            )  # fmt: skip
            found = joint.proposed_step(single, 123, PACE)
            assert_close(PACE.step_size * steps[k], found[0], EXACT)
            assert_close(PACE.step_size**2 * divergences[k], found[-1], EXACT)


def test_members_do_not_see_each_other() -> None:
    x, y, weight = rows()

    def run(members: list[int]) -> list[StackLayer]:
        layers = [replace(layer, mean=layer.mean[members]) for layer in start()]
        for step in range(1, 30):
            layers = take_in(layers, passed(layers, x, y, weight[members]), step, PACE)
            layers, _ = advance(layers, weight[members].sum(-1), PACE)
        return layers

    together, alone = run([0, 1, 2]), run([1])
    for one, other in zip(together, alone, strict=True):
        assert_close(one.mean[1], other.mean[0], STEPS)


def test_a_row_of_weight_two_counts_as_two() -> None:
    """In A and V. S is of weighted gradients, which a row of twice the weight has twice as large."""
    x, y, _ = rows()
    times = torch.arange(N) % 3
    layers = start()
    weighted = take_in(layers, passed(layers, x, y, times.double().expand(K, N)), 1, PACE)
    repeated_rows = x.repeat_interleave(times, 0), y.repeat_interleave(times, 0)
    repeated = take_in(layers, passed(layers, *repeated_rows, torch.ones(K, int(times.sum())).double()), 1, PACE)
    for one, other in zip(weighted, repeated, strict=True):
        assert one.inputs is not None
        assert other.inputs is not None
        assert one.drive is not None
        assert other.drive is not None
        assert_close(one.inputs, other.inputs, EXACT)
        assert_close(one.drive, other.drive, EXACT)


def test_known_inputs_are_the_gram_matrix_of_all_rows() -> None:
    x, y, weight = rows()
    first = with_known_inputs(start()[0], x, weight, PACE)
    ones = torch.cat([x, torch.ones(N, 1).double()], 1)
    assert first.inputs is not None
    assert first.damping is not None
    assert first.damped is not None
    for k in range(K):
        gram = (ones * weight[k][:, None]).mT @ ones / weight[k].sum()
        assert_close(first.inputs.values[k], gram, EXACT)
        damped = gram + PACE.damping * gram.diagonal().mean() * torch.eye(4).double()
        assert_close(first.damped.values[k], damped, EXACT)
    # A batch of a few rows does not change them.
    layers = [first, start()[1]]
    after = take_in(layers, passed(layers, x[:5], y[:5], weight[:, :5]), 6, PACE)
    assert after[0].inputs is first.inputs
    assert after[0].damped is first.damped


def map_estimate(x: Array, y: Array, variance: float) -> Array:
    """Of logistic regression, by SciPy."""
    ones = np.concatenate([x, np.ones((len(x), 1))], axis=1)
    signs = 2 * y - 1

    def loss(w: Array) -> float:
        return float(np.logaddexp(0.0, -signs * (ones @ w)).sum() + 0.5 * w @ w / variance)

    found: Array = minimize(loss, np.zeros(ones.shape[1]), method="BFGS", options={"gtol": 1e-8}).x
    return found


@pytest.mark.parametrize("known", [False, True])
@pytest.mark.parametrize("step_size", [0.3, 1.0])
def test_logistic_regression_rests_at_the_map_estimate(step_size: float, known: bool) -> None:
    """Of each member's own rows."""
    n = 120
    x = randn(n, 2, seed=1)
    y = (x @ torch.tensor([1.0, -2.0]).double() + randn(n, seed=4) > 0).double()[:, None]
    weight = torch.ones(2, n, dtype=torch.float64)
    weight[1, ::3] = 0.0
    pace = Pace(step_size, kl_bound=1.0, momentum=0.5)
    layers = [StackLayer(torch.zeros(2, 3, 1).double(), 2.0, "only")]
    if known:
        layers = [with_known_inputs(layers[0], x, weight, pace)]
    for step in range(1, 801):
        layers, _ = advance(take_in(layers, passed(layers, x, y, weight), step, pace), weight.sum(-1), pace)
    for k in range(2):
        own = weight[k] > 0
        expected = map_estimate(x[own].numpy(), y[own, 0].numpy(), 2.0)
        np.testing.assert_allclose(layers[0].mean[k, :, 0].numpy(), expected, atol=1e-4)


def test_each_member_has_a_bound_of_its_own_and_refuses_what_is_not_finite() -> None:
    x, y, weight = rows()
    layers = take_in(start(), passed(start(), x, y, weight), 1, PACE)
    assert layers[0].drive is not None
    drive = layers[0].drive.clone()
    drive[0] *= 1e4
    drive[1] = float("inf")
    broken = [replace(layers[0], drive=drive), layers[1]]
    after, refused = advance(broken, weight.sum(-1), PACE)
    assert refused == 1
    whole, _ = advance(layers, weight.sum(-1), PACE)
    share = shares(broken, after, weight)
    assert 0 < share[0] < 0.1 * shares(layers, whole, weight)[0]
    for one, before, other in zip(after, layers, whole, strict=True):
        assert torch.equal(one.mean[1], before.mean[1])
        assert torch.equal(one.mean[2], other.mean[2])
        assert bool(one.mean.isfinite().all())


def test_gradients_that_grow_suddenly_are_not_averaged_away() -> None:
    x, y, weight = rows()
    layers = start()
    usual = passed(layers, x, y, weight)
    small = replace(usual, gradients=[1e-3 * g for g in usual.gradients])
    for step in range(1, 9):
        layers = take_in(layers, small, step, PACE)
    after = take_in(layers, passed(layers, x, y, weight), 9, PACE)
    fresh = take_in(start(), passed(layers, x, y, weight), 1, PACE)
    for one, other in zip(after, fresh, strict=True):
        assert one.gradients is not None
        assert other.gradients is not None
        assert_close(one.gradients, other.gradients, EXACT)
