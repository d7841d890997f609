"""Stopping, saving and going on; and steps that fail."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from networks import assert_same_posteriors, batches, data, inference, mlp, parameters, randn
from torch import Tensor, nn

import bali

SETTINGS: dict[str, dict[str, Any]] = {
    f"{reparam}, {update} form, {noise} of the noise": {"reparam": reparam, "update": update, "noise": noise}
    for reparam in ("weight", "local", "none")
    for update in ("mean", "natural")
    for noise in ("mode", "sample")
}
SETTINGS |= {
    "exact inputs": {"input_moments": bali.input_moments(data("gaussian", 40, 3, 2)[0])},
    "noise every 3 steps": {"noise_every": 3, "target_noise": False},
    "momentum": {"momentum": 0.6},
}
each_setting = pytest.mark.parametrize("settings", SETTINGS.values(), ids=SETTINGS.keys())


def start(seed: int = 0, **settings: Any) -> bali.LayerwiseInference:
    options: dict[str, Any] = {"n_data": 40, "ema_rate": lambda step: 0.3 if step <= 5 else 0.1, "effective_size": 25}
    return inference(mlp((3, 6, 5, 2), seed=seed), **(options | settings))


def train(run: bali.LayerwiseInference, first: int, last: int) -> list[Tensor]:
    steps = batches(*data("gaussian", 40, 3, 2), 16, 10)
    return [run.step(x, y) for x, y in steps[first:last]]


def assert_identical(one: bali.LayerwiseInference, two: bali.LayerwiseInference) -> None:
    assert_same_posteriors(one, two, rtol=0.0, atol=0.0)
    assert (one.steps, one.rate, one.output_layer) == (two.steps, two.rate, two.output_layer)
    pairs = zip(parameters(one.network.module), parameters(two.network.module), strict=True)
    assert all(torch.equal(a, b) for a, b in pairs)
    assert torch.equal(one.generator.get_state(), two.generator.get_state())
    x = randn(5, 3, seed=30)
    assert torch.equal(one.predict(x, 3).mean, two.predict(x, 3).mean)  # type: ignore[attr-defined]


def test_older_files_with_the_average_of_the_inputs_are_read() -> None:
    """They hold XᵀX where newer ones hold R₀⁻¹ + XᵀX."""
    run, resumed = start(), start(seed=8)
    train(run, 0, 4)
    state = run.state_dict()
    for name, layer in run.states.items():
        state["tensors"][f"{name}/xx"] = state["tensors"].pop(f"{name}/precision") - layer.prior.precision
    resumed.load_state_dict(state)
    assert_same_posteriors(run, resumed, rtol=1e-12, atol=1e-12)
    assert torch.allclose(train(run, 4, 5)[0], train(resumed, 4, 5)[0])


def test_older_files_with_tokens_as_a_matrix_are_read() -> None:
    """Newer ones hold the diagonal, which is all there is."""
    tokens, y = torch.arange(30) % 5, data("categorical", 30, 2, 3)[1]
    run, resumed = (inference(nn.Sequential(nn.Embedding(5, 4), nn.Linear(4, 3)).double(), "categorical") for _ in range(2))
    run.step(tokens, y)
    state = run.state_dict()
    xx = state["tensors"].pop("0/precision") - run.states["0"].prior.precision
    state["tensors"]["0/xx"] = torch.diag_embed(xx.squeeze(-1))
    resumed.load_state_dict(state)
    assert_same_posteriors(run, resumed, rtol=1e-12, atol=1e-12)


# --- going on -------------------------------------------------------------------------------------------------------


@each_setting
def test_the_same_seeds_give_the_same_bits(settings: dict[str, Any]) -> None:
    runs = [start(**settings), start(**settings)]
    for run in runs:
        train(run, 0, 5)
    assert_identical(*runs)


@each_setting
@pytest.mark.parametrize("through_file", [False, True], ids=["state_dict", "file"])
@pytest.mark.parametrize("stop", [0, 1, 5])
def test_a_resumed_run_equals_an_uninterrupted_one(
    settings: dict[str, Any], through_file: bool, stop: int, tmp_path: Path
) -> None:
    whole = start(**settings)
    values = train(whole, 0, 10)
    stopped = start(**settings)
    train(stopped, 0, stop)
    resumed = start(seed=8, generator=torch.Generator().manual_seed(123), **settings)  # other weights, other noise
    if through_file:
        stopped.save(tmp_path / "run.bali")
        resumed.load(tmp_path / "run.bali")
    else:
        state = stopped.state_dict()
        train(stopped, stop, 8)  # a state is a copy: what happens later does not change it
        resumed.load_state_dict(state)
    assert resumed.steps == stop
    assert all(torch.equal(a, b) for a, b in zip(train(resumed, stop, 10), values[stop:], strict=True))
    assert_identical(whole, resumed)


def assert_resumes(
    whole: bali.LayerwiseInference,
    stopped: bali.LayerwiseInference,
    resumed: bali.LayerwiseInference,
    x: torch.Tensor,
    y: torch.Tensor,
    folder: Path,
) -> None:
    """One step, a file, one more step: the same bits as two steps in a row."""
    for run in (whole, stopped):
        run.step(x, y)
    stopped.save(folder / "run.bali")
    resumed.load(folder / "run.bali")
    for run in (whole, resumed):
        run.step(x, y)
    assert_same_posteriors(whole, resumed, rtol=0.0, atol=0.0)


@pytest.mark.parametrize("likelihood", ["categorical", "bernoulli"])
def test_classification_resumes(likelihood: str, tmp_path: Path) -> None:
    x, y = data(likelihood, 30, 3, 2)
    whole, stopped, resumed = (inference(mlp((3, 5, 2)), likelihood, 30) for _ in range(3))
    assert_resumes(whole, stopped, resumed, x, y, tmp_path)


def test_stacks_resume(tmp_path: Path) -> None:
    x, y = data("gaussian", 30, 3, 2)
    whole, stopped, resumed = (
        inference(bali.stack([mlp((3, 5, 2), seed=k) for k in range(3)]), n_data=30) for _ in range(3)
    )
    assert_resumes(whole, stopped, resumed, x, y, tmp_path)


def test_a_bare_layer_resumes(tmp_path: Path) -> None:
    """Its name is the empty string."""
    x, y = data("gaussian", 30, 3, 2)
    runs = [inference(nn.Linear(3, 2).double(), n_data=30) for _ in range(2)]
    runs[0].step(x, y)
    runs[0].save(tmp_path / "run.bali")
    runs[1].load(tmp_path / "run.bali")
    assert_same_posteriors(*runs, rtol=0.0, atol=0.0)


# --- states that do not fit -----------------------------------------------------------------------------------------


def other_network(sizes: tuple[int, ...], bias: bool = True) -> bali.LayerwiseInference:
    return inference(mlp(sizes, bias=bias), n_data=40, effective_size=25)


OTHERS = {
    "fewer layers": lambda: other_network((3, 6, 2)),
    "other widths": lambda: other_network((3, 6, 4, 2)),
    "no biases": lambda: other_network((3, 6, 5, 2), bias=False),
    "stacked": lambda: inference(bali.stack([mlp((3, 6, 5, 2))] * 2), n_data=40, effective_size=25),
    "other update": lambda: start(update="natural"),
    "other effective_size": lambda: start(effective_size=26),
    "other prior_variance": lambda: start(prior_variance=3.0),
    "other noise_floor": lambda: start(noise_floor=0.5),
    "other output_noise_floor": lambda: start(output_noise_floor=0.5),
}


@pytest.mark.parametrize("other", OTHERS.values(), ids=OTHERS.keys())
def test_states_of_other_networks_or_settings_are_refused(other: Any, tmp_path: Path) -> None:
    run = start()
    train(run, 0, 2)
    run.save(tmp_path / "run.bali")
    refusing = other()
    before = parameters(refusing.network.module)
    with pytest.raises(ValueError, match="the saved state has"):
        refusing.load(tmp_path / "run.bali")
    assert refusing.steps == 0
    assert all(torch.equal(a, b) for a, b in zip(before, parameters(refusing.network.module), strict=True))


# --- failed steps ---------------------------------------------------------------------------------------------------


def spoiled(tensor: Tensor, value: float) -> Tensor:
    tensor = tensor.clone()
    tensor[1, 0] = value
    return tensor


SPOILT = {
    "NaN in x": lambda x, y: (spoiled(x, float("nan")), y),
    "infinity in x": lambda x, y: (spoiled(x, float("inf")), y),
    "NaN in y": lambda x, y: (x, spoiled(y, float("nan"))),
    "infinity in y": lambda x, y: (x, spoiled(y, float("inf"))),
}


@pytest.mark.parametrize("spoil", SPOILT.values(), ids=SPOILT.keys())
@pytest.mark.parametrize("done", [0, 3], ids=["first step", "later step"])
@pytest.mark.parametrize("reparam", ["weight", "local", "none"])
def test_a_failed_step_changes_nothing(spoil: Any, done: int, reparam: str) -> None:
    run = start(reparam=reparam)
    train(run, 0, done)
    states, rate, weights = dict(run.states), run.rate, parameters(run.network.module)
    x, y = data("gaussian", 16, 3, 2)
    with pytest.raises(bali.NumericalError, match="standardise"):
        run.step(*spoil(x, y))
    assert (run.steps, run.rate) == (done, rate)
    for name, state in run.states.items():
        assert state.posterior is states[name].posterior
        assert state.precision is states[name].precision
        assert state.gg is states[name].gg
        assert state.weights is states[name].weights
    assert all(torch.equal(a, b) for a, b in zip(weights, parameters(run.network.module), strict=True))
    train(run, done, done + 1)  # and goes on
    assert run.steps == done + 1


def test_a_failed_posterior_changes_nothing() -> None:
    """Inputs whose squares overflow the algebra's float64: caught in a layer, after other layers were updated."""
    run = start()
    train(run, 0, 2)
    states, weights = dict(run.states), parameters(run.network.module)
    x, y = data("gaussian", 16, 3, 2)
    with pytest.raises(bali.NumericalError, match="layer '0'"):
        run.step(x * 1e200, y)
    assert all(run.states[name] is state for name, state in states.items())
    assert all(torch.equal(a, b) for a, b in zip(weights, parameters(run.network.module), strict=True))
