"""Momentum of the mean, against steps without it and against its definition."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import bali
from support.networks import batches, data, inference, mlp
from support.oracles import assert_close
from support.posteriors import parts

MU = 0.6
OPTIONS: dict[str, dict[str, Any]] = {
    "regression": {},
    "classes": {"likelihood": "categorical"},
    "exact inputs": {"input_moments": bali.input_moments(data("gaussian", 40, 3, 2)[0])},
    "no target noise": {"target_noise": False},
    "prior about weights": {"about_weights": True},
    "local": {"reparam": "local"},
}


def start(*, likelihood: str = "gaussian", **options: Any) -> bali.LayerwiseInference:
    return inference(mlp((3, 6, 5, 2)), likelihood, n_data=40, effective_size=30.0, **options)


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_a_step_goes_on_by_a_share_of_the_last_movement(options: dict[str, Any]) -> None:
    """Everything else is that of a step without momentum from the same state."""
    run = start(**options)
    likelihood = options.get("likelihood", "gaussian")
    means: list[dict[str, torch.Tensor]] = []
    for x, y in batches(*data(likelihood, 40, 3, 2), 16, 14):
        plain = start(**options)
        if run.state.step:
            plain.load_state_dict(run.state_dict())
        assert_close(run.step(x, y, momentum=MU), plain.step(x, y))
        for name, expected in plain.posteriors.items():
            found, moved = run.posteriors[name], torch.zeros(())
            if len(means) >= 2:
                moved = means[-1][name] - means[-2][name]
                assert float(moved.abs().max()) > 0.0
            assert_close(found.mean, expected.mean + MU * moved)
            others = parts(expected)
            for part in ("precision", "scale", "dof"):
                assert_close(parts(found)[part], others[part])
        means.append({name: q.mean.clone() for name, q in run.posteriors.items()})


def test_without_momentum_nothing_more_is_kept() -> None:
    run = start()
    for x, y in batches(*data("gaussian", 40, 3, 2), 16, 3):
        run.step(x, y)
    assert not [key for key in run.state_dict()["tensors"] if key.endswith("velocity")]


def test_small_steps_learn_faster_with_momentum() -> None:
    x, y = data("gaussian", 40, 3, 2)
    reached = []
    for momentum in (0.0, 0.7):
        run = start(step_size=0.05, ema_rate=0.2, reparam="none", target_noise=False)
        reached.append([float(run.step(x, y, momentum=momentum)) for _ in range(80)])
    assert max(reached[1][:40]) > max(reached[0])  # in half as many steps


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 1000), momentum=st.floats(0.0, 0.98), rate=st.floats(0.05, 1.0), step_size=st.floats(0.1, 5.0))
def test_noise_stays_positive_definite(seed: int, momentum: float, rate: float, step_size: float) -> None:
    run = start(ema_rate=rate, step_size=step_size)
    for x, y in batches(*data("gaussian", 40, 3, 2), 5, 12, seed=seed):
        run.step(x, y, momentum=momentum)
    assert not run.setup.repairs.count
    for name, q in run.posteriors.items():
        floor = torch.linalg.eigvalsh(run.state.layers[name].prior.scale).min()
        assert float(torch.linalg.eigvalsh(q.scale).min()) > 0.999 * float(floor)


def test_a_step_without_momentum_forgets_the_movement() -> None:
    """The next one with momentum then goes on by the movement of the step before it, and not of an earlier one."""
    run = start()
    steps = batches(*data("gaussian", 40, 3, 2), 16, 4)
    for (x, y), momentum in zip(steps, (MU, MU, 0.0, MU), strict=True):
        run.step(x, y, momentum=momentum)
        assert (run.state.layers["0"].velocity is None) == (momentum == 0.0 or run.state.step == 1)


@pytest.mark.parametrize("momentum", [-0.1, 1.0, float("nan")])
def test_it_is_checked(momentum: float) -> None:
    x, y = data("gaussian", 40, 3, 2)
    with pytest.raises(ValueError, match="momentum must be at least 0 and less than 1"):
        start().step(x, y, momentum=momentum)
