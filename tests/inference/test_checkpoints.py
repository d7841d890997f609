"""Stopping, saving and going on; and steps that fail."""

from __future__ import annotations

from pathlib import Path
from typing import Any, get_args

import pytest
import torch
from torch import Tensor, nn

import bali
from bali.inference.settings import Noise
from support.networks import batches, data, inference, mlp, parameters, randn
from support.posteriors import assert_same_posteriors

SETTINGS: dict[str, dict[str, Any]] = {
    f"{reparam}, {targets}": {"reparam": reparam, "target_noise": targets == "noisy targets"}
    for reparam in ("weight", "local", "none")
    for targets in ("noisy targets", "targets of the mean")
}
SETTINGS |= {
    "exact inputs": {"input_moments": bali.input_moments(data("gaussian", 40, 3, 2)[0])},
    "prior about weights": {"about_weights": True},
}
each_setting = pytest.mark.parametrize("settings", SETTINGS.values(), ids=SETTINGS.keys())
each_momentum = pytest.mark.parametrize("momentum", [0.0, 0.6], ids=["", "momentum"])


def start(seed: int = 0, **settings: Any) -> bali.LayerwiseInference:
    options: dict[str, Any] = {"n_data": 40, "effective_size": 25}
    return inference(mlp((3, 6, 5, 2), seed=seed), **(options | settings))


def train(run: bali.LayerwiseInference, first: int, last: int, momentum: float = 0.0) -> list[Tensor]:
    steps = list(enumerate(batches(*data("gaussian", 40, 3, 2), 16, 10)))
    return [run.step(x, y, 0.3 if step < 5 else 0.1, momentum=momentum) for step, (x, y) in steps[first:last]]


def assert_identical(one: bali.LayerwiseInference, two: bali.LayerwiseInference) -> None:
    assert_same_posteriors(one, two)
    assert (one.state.step, one.state.rate, one.state.output_layer) == (
        two.state.step,
        two.state.rate,
        two.state.output_layer,
    )
    pairs = zip(parameters(one.module), parameters(two.module), strict=True)
    assert all(torch.equal(a, b) for a, b in pairs)
    assert torch.equal(one.state.generator.get_state(), two.state.generator.get_state())
    x, noises = randn(5, 3, seed=30), get_args(Noise)
    assert all(torch.equal(one.predict(x, 3, noise=n).mean, two.predict(x, 3, noise=n).mean) for n in noises)


# --- going on -------------------------------------------------------------------------------------------------------


@each_setting
@each_momentum
def test_the_same_seeds_give_the_same_bits(settings: dict[str, Any], momentum: float) -> None:
    runs = [start(**settings), start(**settings)]
    for run in runs:
        train(run, 0, 5, momentum)
    assert_identical(*runs)


@each_setting
@each_momentum
@pytest.mark.parametrize("through_file", [False, True], ids=["state_dict", "file"])
@pytest.mark.parametrize("stop", [0, 1, 5])
def test_a_resumed_run_equals_an_uninterrupted_one(
    settings: dict[str, Any], momentum: float, through_file: bool, stop: int, tmp_path: Path
) -> None:
    whole = start(**settings)
    values = train(whole, 0, 10, momentum)
    stopped = start(**settings)
    train(stopped, 0, stop, momentum)
    resumed = start(seed=8, generator=torch.Generator().manual_seed(123), **settings)  # other weights, other noise
    if through_file:
        stopped.save(tmp_path / "run.bali")
        resumed.load(tmp_path / "run.bali")
    else:
        state = stopped.state_dict()
        train(stopped, stop, 8)  # a state is a copy: what happens later does not change it
        resumed.load_state_dict(state)
    assert resumed.state.step == stop
    assert all(torch.equal(a, b) for a, b in zip(train(resumed, stop, 10, momentum), values[stop:], strict=True))
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
    assert_same_posteriors(whole, resumed)


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
    assert_same_posteriors(*runs)


# --- states that do not fit -----------------------------------------------------------------------------------------


def other_network(sizes: tuple[int, ...], bias: bool = True) -> bali.LayerwiseInference:
    return inference(mlp(sizes, bias=bias), n_data=40, effective_size=25)


OTHERS = {
    "fewer layers": lambda: other_network((3, 6, 2)),
    "other widths": lambda: other_network((3, 6, 4, 2)),
    "no biases": lambda: other_network((3, 6, 5, 2), bias=False),
    "stacked": lambda: inference(bali.stack([mlp((3, 6, 5, 2))] * 2), n_data=40, effective_size=25),
    "prior about weights": lambda: start(about_weights=True),
    "exact inputs": lambda: start(input_moments=torch.eye(4)),
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
    before = parameters(refusing.module)
    with pytest.raises(ValueError, match="the saved state has"):
        refusing.load(tmp_path / "run.bali")
    assert refusing.state.step == 0
    assert all(torch.equal(a, b) for a, b in zip(before, parameters(refusing.module), strict=True))


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
    before, weights = run.state, parameters(run.module)
    x, y = data("gaussian", 16, 3, 2)
    with pytest.raises(bali.NumericalError, match="standardise"):
        run.step(*spoil(x, y))
    assert run.state is before
    assert all(torch.equal(a, b) for a, b in zip(weights, parameters(run.module), strict=True))
    train(run, done, done + 1)  # and goes on
    assert run.state.step == done + 1


def test_a_failed_posterior_changes_nothing() -> None:
    """Inputs whose squares overflow the algebra's float64: caught in a layer, after other layers were updated."""
    run = start()
    train(run, 0, 2)
    before, weights = run.state, parameters(run.module)
    x, y = data("gaussian", 16, 3, 2)
    with pytest.raises(bali.NumericalError, match="layer '0'"):
        run.step(x * 1e200, y)
    assert run.state is before
    assert all(torch.equal(a, b) for a, b in zip(weights, parameters(run.module), strict=True))
