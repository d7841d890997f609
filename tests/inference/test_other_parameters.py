"""Parameters without a posterior, trained by a torch optimizer within the same step."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import bali
from support.networks import data, inference, mlp, parameters, randn, seeded
from support.posteriors import assert_same_posteriors
from support.tolerances import EXACT

RATE = 0.1


def sgd(parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=RATE)


def adam(parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.Adam(parameters, lr=0.05)


def in_groups(parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.Adam([{"params": [p]} for p in parameters])


def normalised(kind: type[nn.Module] = nn.BatchNorm1d) -> nn.Sequential:
    first, _, last = mlp((3, 5, 2)).children()
    return nn.Sequential(first, kind(5), nn.Tanh(), last).double()


class Scaled(nn.Module):
    """A network times a number of its own."""

    def __init__(self, body: nn.Module) -> None:
        super().__init__()
        self.body, self.scale, self.unused = body, nn.Parameter(torch.ones(()).double()), nn.Parameter(torch.ones(2))

    def forward(self, x: Tensor) -> Tensor:
        return self.scale * self.body(x)


def step_by_hand(module: nn.Module, x: Tensor, y: Tensor, names: list[str], weight: Tensor | None = None) -> list[Tensor]:
    """What one step of gradient ascent on the mean log-likelihood makes of some parameters."""
    named = dict(module.named_parameters())
    losses = nn.functional.cross_entropy(module(x), y, reduction="none")
    loss = losses.mean() if weight is None else (weight * losses).sum() / weight.sum()
    gradients = torch.autograd.grad(loss, [named[name] for name in names])
    return [(named[name] - RATE * g).detach() for name, g in zip(names, gradients, strict=True)]


# --- the step -------------------------------------------------------------------------------------------------------

CASES: dict[str, tuple[Callable[[], nn.Module], str | tuple[str, ...], list[str]]] = {
    "batch norm": (normalised, (), ["1.weight", "1.bias"]),
    "layer norm": (lambda: normalised(nn.LayerNorm), (), ["1.weight", "1.bias"]),
    "a scalar": (lambda: Scaled(mlp((3, 5, 2))), (), ["scale"]),
    "a layer left out": (lambda: mlp((3, 5, 4, 2)), "2", ["2.weight", "2.bias"]),
    "all inside a module": (
        lambda: nn.Sequential(mlp((3, 5, 4)), nn.Tanh(), mlp((4, 2))),
        ("0",),
        ["0.0.weight", "0.2.bias"],
    ),
}


@pytest.mark.parametrize(("build", "exclude", "names"), CASES.values(), ids=CASES.keys())
@pytest.mark.parametrize("weighted", [False, True], ids=["", "weighted"])
def test_others_take_a_step_on_the_mean_log_likelihood(
    build: Callable[[], nn.Module], exclude: str | tuple[str, ...], names: list[str], weighted: bool
) -> None:
    x, y = data("categorical", 20, 3, 2)
    weight = torch.rand(20, generator=seeded(5)).double() if weighted else None
    module = build()
    expected = step_by_hand(build(), x, y, names, weight)
    run = inference(module, "categorical", 20, optimizer=sgd, exclude=exclude)
    run.step(x, y, sample_weight=weight)
    named = dict(module.named_parameters())
    for name, value in zip(names, expected, strict=True):
        torch.testing.assert_close(named[name].detach(), value, rtol=EXACT, atol=EXACT)
        assert named[name].grad is None
    layers = {name.rpartition(".")[0] for name in run.setup.network.others}
    assert not layers & set(run.posteriors)


def test_a_rate_of_zero_is_a_frozen_module() -> None:
    """The posteriors of the other layers do not depend on there being an optimizer."""
    x, y = data("gaussian", 20, 3, 2)
    frozen, still = normalised(), normalised()
    frozen[1].requires_grad_(False)
    runs = [inference(frozen, n_data=20), inference(still, n_data=20, optimizer=lambda p: torch.optim.SGD(p, lr=0.0))]
    for _ in range(4):
        for run in runs:
            run.step(x, y)
    assert_same_posteriors(*runs)


def test_running_statistics_move_in_training_and_serve_in_prediction() -> None:
    x, y = data("gaussian", 20, 3, 2)
    module = normalised()
    norm = module[1]
    assert isinstance(norm, nn.BatchNorm1d)
    run = inference(module, n_data=20, optimizer=adam)
    hidden = module[0](x).detach()
    run.step(x, y)
    assert norm.running_mean is not None
    torch.testing.assert_close(norm.running_mean, 0.1 * hidden.mean(0))
    kept = norm.running_mean.clone()
    run.predict(x, 3)
    assert torch.equal(kept, norm.running_mean)
    assert norm.training


def test_a_normalised_network_learns() -> None:
    x = randn(80, 3, seed=1)
    y = x[:, :1] * x[:, 1:2]
    module = nn.Sequential(nn.Linear(3, 20), nn.BatchNorm1d(20), nn.ReLU(), nn.Linear(20, 1)).double()
    run = inference(module, n_data=80, optimizer=adam)
    values = [float(run.step(x, y)) for _ in range(80)]
    assert sum(values[-10:]) / 10 > values[0] + 0.5


# --- what is refused ------------------------------------------------------------------------------------------------


def tied() -> nn.Module:
    module = mlp((3, 3, 3, 2))
    module[2].weight = module[0].weight
    return module


def test_tied_layers_can_be_left_out_together() -> None:
    run = inference(tied(), optimizer=sgd, exclude=("0", "2"))
    assert list(run.setup.network.others) == ["0.weight", "0.bias", "2.bias"]
    with pytest.raises(bali.UnsupportedLayerError, match="one tied parameter"):
        inference(tied(), optimizer=sgd, exclude=("0",))


REFUSED: dict[str, tuple[Callable[[], nn.Module], dict[str, Any], type[Exception], str]] = {
    "no optimizer": (normalised, {}, bali.UnsupportedLayerError, "'1' .BatchNorm1d. .* Give an optimizer"),
    "exclude alone": (lambda: mlp((3, 4, 2)), {"exclude": ("0",)}, ValueError, "exclude needs an optimizer"),
    "unknown name": (normalised, {"exclude": ("bn",), "optimizer": sgd}, ValueError, r"unknown modules \['bn'\]"),
    "nothing left": (lambda: mlp((3, 2)), {"exclude": ("0",), "optimizer": sgd}, bali.UnsupportedLayerError, "no nn.Linear"),
    "stacks": (
        lambda: nn.Sequential(bali.stack([mlp((3, 4))]), nn.LayerNorm(4)).double(),
        {"optimizer": sgd},
        bali.UnsupportedLayerError,
        "stacked networks cannot",
    ),
    "no function": (normalised, {"optimizer": lambda p: None}, TypeError, "it returned NoneType"),
    "not all of them": (normalised, {"optimizer": lambda p: sgd(p[:1])}, ValueError, "exactly the parameters"),
}


@pytest.mark.parametrize(("build", "options", "error", "message"), REFUSED.values(), ids=REFUSED.keys())
def test_what_does_not_fit_is_refused(
    build: Callable[[], nn.Module], options: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        inference(build(), **options)


# --- failed steps, files --------------------------------------------------------------------------------------------


class Failing(torch.optim.Adam):
    """Moves everything, and fails at the third step."""

    def step(self, closure: Any = None) -> Any:
        super().step(closure)
        if float(self.state[self.param_groups[0]["params"][0]]["step"]) == 3:
            raise RuntimeError("broken")


def everything(run: bali.LayerwiseInference) -> dict[str, Tensor]:
    return run.state_dict()["tensors"]


@pytest.mark.parametrize("failure", ["optimizer", "NaN", "posterior"])
def test_a_failed_step_changes_nothing(failure: str) -> None:
    x, y = data("gaussian", 20, 3, 2)
    module = normalised()
    run = inference(module, n_data=20, optimizer=lambda p: (Failing if failure == "optimizer" else torch.optim.Adam)(p))
    for _ in range(2):
        run.step(x, y)
    before, weights = everything(run), parameters(module)
    bad = {"optimizer": x, "NaN": x * float("nan"), "posterior": x * 1e200}[failure]
    with pytest.raises((bali.NumericalError, RuntimeError)):
        run.step(bad, y)
    after = everything(run)
    assert set(before) == set(after)
    assert [key for key in before if not torch.equal(before[key], after[key])] == []
    assert all(torch.equal(a, b) for a, b in zip(weights, parameters(module), strict=True))


class Rooted(Scaled):
    """The derivative of the root is infinite at zero."""

    def forward(self, x: Tensor) -> Tensor:
        return self.body(x * (1.0 + (self.scale - 1.0).sqrt()))


def test_infinite_gradients_are_refused_by_name() -> None:
    x, y = data("gaussian", 20, 3, 2)
    run = inference(Rooted(mlp((3, 5, 2))), n_data=20, optimizer=adam)
    with pytest.raises(bali.NumericalError, match="gradient of parameter 'scale' is not finite"):
        run.step(x, y)
    assert run.state.step == 0
    assert run.setup.network.others["scale"].item() == 1.0


@pytest.mark.parametrize("through_file", [False, True], ids=["state_dict", "file"])
@pytest.mark.parametrize(
    "optimizer",
    [adam, sgd, lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9), lambda p: torch.optim.AdamW(p, lr=torch.tensor(0.01))],
    ids=["Adam", "SGD", "momentum", "AdamW"],
)
def test_a_resumed_run_equals_an_uninterrupted_one(through_file: bool, optimizer: Any, tmp_path: Path) -> None:
    x, y = data("gaussian", 20, 3, 2)
    whole, stopped = (inference(normalised(), n_data=20, optimizer=optimizer) for _ in range(2))
    resumed = inference(normalised(), n_data=20, optimizer=optimizer)
    with torch.no_grad():
        resumed.setup.network.others["1.weight"].fill_(7.0)
    for run in (whole, stopped):
        for _ in range(3):
            run.step(x, y)
    stopped.save(tmp_path / "run.bali")
    if through_file:
        resumed.load(tmp_path / "run.bali")
    else:
        resumed.load_state_dict(stopped.state_dict())
    for run in (whole, resumed):
        for _ in range(3):
            run.step(x, y)
    one, two = everything(whole), everything(resumed)
    assert set(one) == set(two)
    assert [key for key in one if not torch.equal(one[key], two[key])] == []


FITTING_NOT: dict[str, tuple[Callable[[], bali.LayerwiseInference], str]] = {
    "another optimizer": (
        lambda: inference(normalised(), n_data=20, optimizer=sgd),
        "optimizer Adam, this inference has SGD",
    ),
    "other parameters": (lambda: inference(Scaled(mlp((3, 5, 2))), n_data=20, optimizer=adam), "layers"),
    "other buffers": (lambda: inference(normalised(nn.LayerNorm), n_data=20, optimizer=adam), "buffers .*running_mean"),
    "frozen": (lambda: frozen(), "parameters without posterior"),
    "other groups": (lambda: inference(normalised(), n_data=20, optimizer=in_groups), "other groups of parameters"),
}


def frozen() -> bali.LayerwiseInference:
    module = normalised()
    module[1].requires_grad_(False)
    return inference(module, n_data=20)


@pytest.mark.parametrize(("build", "message"), FITTING_NOT.values(), ids=FITTING_NOT.keys())
def test_states_that_do_not_fit_are_refused(build: Callable[[], bali.LayerwiseInference], message: str) -> None:
    x, y = data("gaussian", 20, 3, 2)
    run, refusing = inference(normalised(), n_data=20, optimizer=adam), build()
    run.step(x, y)
    before = parameters(refusing.module)
    with pytest.raises(ValueError, match=message):
        refusing.load_state_dict(run.state_dict())
    assert refusing.state.step == 0
    assert all(torch.equal(a, b) for a, b in zip(before, parameters(refusing.module), strict=True))
