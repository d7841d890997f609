"""A state is a value: steps make new ones, and leave the old ones, and everything if they fail, as they were."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import bali
from bali.conjugate.symmetric import Diagonal
from bali.inference.checkpoints import layer_from_tensors, tensors_of
from bali.inference.passes import batch_pass
from bali.inference.state import State
from bali.inference.step import next_state
from support.networks import data, inference, mlp, parameters
from support.posteriors import assert_same_posteriors
from support.sequences import Letters


def letters() -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return Letters(4, 2).double()


def stack() -> nn.Module:
    return bali.stack([mlp((4, 5, 2), seed=k) for k in range(3)])


CASES: dict[str, tuple[Callable[[], nn.Module], str, dict[str, Any]]] = {
    "regression": (lambda: mlp((4, 6, 2)), "gaussian", {}),
    "classes": (lambda: mlp((4, 6, 2)), "categorical", {"reparam": "none"}),
    "local noise": (lambda: mlp((4, 6, 2)), "gaussian", {"reparam": "local"}),
    "sequences": (letters, "categorical", {}),
    "stack": (stack, "gaussian", {}),
    "members with priors": (stack, "categorical", {"prior_variance": torch.tensor([0.5, 1.0, 2.0])}),
    "exact inputs": (lambda: mlp((4, 6, 2)), "categorical", {"input_moments": torch.eye(5).double()}),
    "prior about weights": (lambda: mlp((4, 6, 2)), "gaussian", {"about_weights": True}),
    "blocks": (lambda: mlp((4, 6, 2)), "categorical", {"max_block": 3}),
    "float32": (lambda: mlp((4, 6, 2)).float(), "categorical", {}),
}
each_case = pytest.mark.parametrize(("build", "likelihood", "settings"), CASES.values(), ids=CASES.keys())
each_start = pytest.mark.parametrize("done", [0, 2], ids=["first step", "later step"])


def started(
    build: Callable[[], nn.Module], likelihood: str, settings: dict[str, Any], done: int
) -> tuple[bali.LayerwiseInference, Tensor, Tensor]:
    """An inference after some steps, with a batch for the next one."""
    module = build()
    x, y = data(likelihood, 20, 4, 2)
    x, run = x.to(next(module.parameters()).dtype), inference(module, likelihood, n_data=20, **settings)
    for _ in range(done):
        run.step(x, y, momentum=0.5)
    return run, x, y


def stepped(run: bali.LayerwiseInference, state: State, x: Tensor, y: Tensor) -> tuple[State, Tensor]:
    """A step as a function of a state, at whose weights the module is."""
    return next_state(run.setup, batch_pass(run.setup, state, x, y, None, None), 0.3, 0.4, 0.5)


def values(state: State) -> dict[str, Tensor]:
    """Copies of all its numbers."""
    found = {f"{name}/{key}": t.clone() for name, layer in state.layers.items() for key, t in tensors_of(layer).items()}
    counters = [state.step, state.rate.weight, state.rate.squares]
    return found | {"generator": state.generator.get_state(), "counters": torch.tensor(counters, dtype=torch.float64)}


def assert_same_values(one: dict[str, Tensor], two: dict[str, Tensor]) -> None:
    assert one.keys() == two.keys()
    assert [key for key in one if not torch.equal(one[key], two[key])] == []


@each_case
@each_start
def test_a_step_leaves_the_old_state_as_it_was(
    build: Callable[[], nn.Module], likelihood: str, settings: dict[str, Any], done: int
) -> None:
    run, x, y = started(build, likelihood, settings, done)
    before, kept = run.state, values(run.state)
    run.step(x, y, momentum=0.5)
    assert run.state is not before
    assert run.state.step == done + 1
    assert_same_values(values(before), kept)
    if done:
        assert_same_posteriors(run.posterior_of(before), before)  # it can still be predicted from
        predicted = run.posterior_of(before).predict(x, 2)
        assert bool(torch.isfinite(predicted.log_prob(y)).all())


@each_case
@each_start
def test_the_same_state_and_batch_give_the_same_next_state_twice(
    build: Callable[[], nn.Module], likelihood: str, settings: dict[str, Any], done: int
) -> None:
    run, x, y = started(build, likelihood, settings, done)
    (one, value), (two, same) = (stepped(run, run.state, x, y) for _ in range(2))
    assert torch.equal(value, same)
    assert_same_values(values(one), values(two))
    assert_same_posteriors(one, two)
    run.step(x, y, 0.4, step_size=0.3, momentum=0.5)  # and it is what the inference does
    assert_same_values(values(run.state), values(one))


@each_case
def test_tensors_tell_a_layer(build: Callable[[], nn.Module], likelihood: str, settings: dict[str, Any]) -> None:
    run, _, _ = started(build, likelihood, settings, 3)
    for name, layer in run.state.layers.items():
        prior = run.setup.settings.prior(
            run.setup.network.layers[name], is_output=name == run.state.output_layer, repairs=run.setup.repairs
        )
        assert layer.precision is not None
        n, is_fixed = run.setup.settings.effective_size, layer.fixed_precision is not None
        again = layer_from_tensors(prior, tensors_of(layer), layer.precision, n, is_fixed=is_fixed)
        assert_same_values(tensors_of(again), tensors_of(layer))
        assert again.velocity is not None
        assert (again.fixed_precision is not None) == is_fixed
        assert again.posterior is not None
        assert layer.posterior is not None
        assert again.posterior.dof == layer.posterior.dof
        assert torch.equal(again.prior.mean.expand_as(layer.prior.mean), layer.prior.mean)
        assert torch.equal(again.prior.scale, layer.prior.scale)
        assert type(again.precision) is type(layer.precision)
        assert isinstance(layer.precision, Diagonal) == run.setup.network.layers[name].has_tokens


def test_a_layer_before_its_first_step_has_weights_only() -> None:
    run = inference(mlp((4, 6, 2)))
    assert {key for layer in run.state.layers.values() for key in tensors_of(layer)} == {"weights"}
    with pytest.raises(RuntimeError, match="no posterior yet"):
        run.state.posteriors  # noqa: B018


@pytest.mark.parametrize("case", sorted(CASES.keys() - {"sequences"}))  # whose tokens have no numbers to spoil
@each_start
@pytest.mark.parametrize("bad", [float("nan"), 1e200], ids=["nan", "overflow"])
def test_a_failed_step_changes_nothing(case: str, done: int, bad: float) -> None:
    run, x, y = started(*CASES[case], done)
    before, kept, weights = run.state, values(run.state), parameters(run.module)
    with pytest.raises(bali.NumericalError):
        run.step(x * bad, y, momentum=0.5)
    assert run.state is before
    assert_same_values(values(run.state), kept)
    assert all(torch.equal(a, b) for a, b in zip(weights, parameters(run.module), strict=True))
    one, _ = stepped(run, before, x, y)
    run.step(x, y, 0.4, step_size=0.3, momentum=0.5)  # and goes on as if nothing had been
    assert_same_values(values(run.state), values(one))


def test_another_mean_is_another_state() -> None:
    run, x, _ = started(*CASES["regression"], 2)
    before = values(run.state)
    shifted = run.state.with_means({name: q.mean + 1.0 for name, q in run.posteriors.items()})
    assert all(torch.equal(q.mean, run.posteriors[name].mean + 1.0) for name, q in shifted.posteriors.items())
    assert_same_values(values(run.state), before)
    assert not torch.equal(run.posterior_of(shifted).predict(x, 2).mean, run.predict(x, 2).mean)
