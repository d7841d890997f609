"""Posteriors over a part of a network, about weights that it has, and over adapters of low rank."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import bali
from bali.conjugate.mniw import MNIW
from bali.conjugate.moments import Moments
from bali.inference.network import Network
from support.networks import data, inference, mlp, parameters, randn, seeded
from support.posteriors import assert_same_posterior, assert_same_posteriors
from support.tolerances import STEPS

# --- the prior's mean -----------------------------------------------------------------------------------------------


def test_one_layer_is_the_regression_with_its_weights_as_prior_mean() -> None:
    x, y = data("gaussian", 30, 3, 2)
    module = mlp((3, 2))
    linear = module[0]
    assert isinstance(linear, nn.Linear)
    mean = torch.cat([linear.weight.T, linear.bias[None]]).detach().clone()
    run = inference(module, n_data=30, about_weights=True, reparam="none", ema_rate=1.0)
    for _ in range(3):
        run.step(x, y)
    prior = MNIW.prior(4, 2, variance=10.0 / 4, noise=1e-4 * 30)
    prior = MNIW(mean, prior.precision, prior.scale, prior.dof)
    expected = prior.condition(Moments.of(x, y, bias=True))
    assert_same_posterior(run.posteriors["0"], expected, STEPS)


def test_a_narrow_prior_keeps_the_weights_and_one_about_zero_does_not() -> None:
    x, y = data("gaussian", 30, 3, 2)
    found = {}
    for about_weights in (True, False):
        module = mlp((3, 5, 2))
        before = torch.cat([p.flatten() for p in parameters(module)])
        run = inference(module, n_data=30, about_weights=about_weights, prior_variance=1e-9, reparam="none")
        for _ in range(5):
            run.step(x, y)
        found[about_weights] = float((torch.cat([p.flatten() for p in parameters(module)]) - before).abs().max())
    assert found[True] < 1e-4
    assert found[False] > 0.1


def test_a_resumed_run_has_the_first_weights_as_prior_mean(tmp_path: Path) -> None:
    x, y = data("gaussian", 30, 3, 2)
    whole, stopped = (inference(mlp((3, 5, 2)), n_data=30, about_weights=True) for _ in range(2))
    resumed = inference(mlp((3, 5, 2), seed=9), n_data=30, about_weights=True)
    for run in (whole, stopped):
        for _ in range(3):
            run.step(x, y)
    stopped.save(tmp_path / "run.bali")
    resumed.load(tmp_path / "run.bali")
    for run in (whole, resumed):
        for _ in range(3):
            run.step(x, y)
    assert_same_posteriors(whole, resumed)
    about_zero = inference(mlp((3, 5, 2)), n_data=30)
    with pytest.raises(ValueError, match="the saved state has prior_about_weights True, this inference has False"):
        about_zero.load(tmp_path / "run.bali")


# --- a part of a network --------------------------------------------------------------------------------------------


def classifier() -> nn.Sequential:
    """With a batch norm, which needs no optimizer if it is outside of the part that is trained."""
    return nn.Sequential(
        mlp((3, 6)), nn.BatchNorm1d(6).double(), nn.Tanh(), mlp((6, 4), seed=1), nn.Tanh(), mlp((4, 2), seed=2)
    )


def test_only_what_is_not_frozen_moves() -> None:
    x, y = data("categorical", 30, 3, 2)
    module = classifier().eval()
    module[:2].requires_grad_(False)
    before = {name: p.detach().clone() for name, p in module.named_parameters()}
    run = inference(module, "categorical", 30, about_weights=True)
    assert list(run.setup.network.layers) == ["3.0", "5.0"]
    assert run.setup.network.others == {}
    for _ in range(3):
        run.step(x, y)
    moved = {name for name, p in module.named_parameters() if not torch.equal(p, before[name])}
    assert {name.partition(".")[0] for name in moved} == {"3", "5"}
    assert {name.partition(".")[0] for name, p in module.named_parameters() if p.requires_grad} == {"3", "5"}


def test_only_the_last_layer_is_the_same_as_a_network_of_which_only_it_is_known() -> None:
    """`Network(only=)` leaves the flags of the module's parameters alone."""
    x, y = data("gaussian", 30, 3, 2)
    modules = [mlp((3, 5, 4, 2)) for _ in range(2)]
    modules[1][:4].requires_grad_(False)
    runs = [inference(module, n_data=30) for module in modules]
    runs[0].setup = replace(runs[0].setup, network=Network(modules[0], only="4", has_true_targets=True))
    runs[0].state = replace(runs[0].state, layers=runs[0].setup.initial_layers())
    for run in runs:
        for _ in range(4):
            run.step(x, y)
    assert_same_posteriors(*runs)


def test_with_an_optimizer_what_is_neither_frozen_nor_a_layer_is_trained_by_it() -> None:
    x, y = data("categorical", 30, 3, 2)
    module = classifier()
    named = Network(module, only=["1", "5"], has_optimizer=True)
    for frozen in ("0", "3"):
        module.get_submodule(frozen).requires_grad_(False)
    run = inference(module, "categorical", 30, optimizer=lambda p: torch.optim.SGD(p, lr=0.1))
    assert list(named.layers) == list(run.setup.network.layers)
    assert list(named.others) == list(run.setup.network.others)
    assert list(run.setup.network.layers) == ["5.0"]
    assert list(run.setup.network.others) == ["1.weight", "1.bias"]
    run.step(x, y)
    assert not torch.equal(run.setup.network.others["1.weight"], torch.ones(6).double())


REFUSED: dict[str, tuple[dict[str, Any], type[Exception], str]] = {
    "unknown": ({"only": ["7"]}, ValueError, "only names unknown modules \\['7'\\]"),
    "no layer": ({"only": ["2"]}, bali.UnsupportedLayerError, "modules \\['2'\\], named in `only`, have no nn.Linear"),
    "nothing": ({"only": []}, bali.UnsupportedLayerError, "named in `only`, have no nn.Linear"),
    "no optimizer": ({"only": ["1", "5"]}, bali.UnsupportedLayerError, "module '1' \\(BatchNorm1d\\)"),
}


@pytest.mark.parametrize(("options", "error", "message"), REFUSED.values(), ids=REFUSED.keys())
def test_wrong_names_are_refused(options: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        Network(classifier(), **options)


# --- adapters -------------------------------------------------------------------------------------------------------


def test_adapters_start_as_the_network_and_leave_its_weights_alone() -> None:
    """The targets are those of a network one of whose layers differs by a matrix of rank one."""
    base, x = mlp((3, 8, 8, 2), seed=1), randn(200, 3, seed=2)
    target = mlp((3, 8, 8, 2), seed=1)
    changed = target[2]
    assert isinstance(changed, nn.Linear)
    with torch.no_grad():
        changed.weight += 3.0 * torch.outer(randn(8, seed=3), randn(8, seed=4)) / 8.0
        y, before = target(x).argmax(-1), base(x)
    kept = {
        f"{name}.base.{part}": p.clone() for name in ("0", "2") for part, p in base.get_submodule(name).named_parameters()
    }
    adapted = bali.lora(base, ["0", "2"], rank=2)
    assert adapted is base
    assert torch.equal(adapted(x), before)
    run = inference(adapted, "categorical", 200, about_weights=True, target_noise=False, ema_rate=0.3)
    assert list(run.setup.network.layers) == ["0.down", "0.up", "2.down", "2.up"]
    values = [float(run.step(x, y)) for _ in range(40)]
    assert sum(values[-5:]) / 5 > values[0] + 0.1
    assert [run.posteriors[name].mean.shape for name in ("2.down", "2.up")] == [(8, 2), (2, 8)]
    assert all(torch.equal(adapted.get_parameter(name), value) for name, value in kept.items())


def test_adapters_have_the_type_of_their_layer_and_a_head_can_be_trained_beside_them() -> None:
    x, y = data("gaussian", 20, 3, 1)
    module = bali.lora(mlp((3, 4, 1)), "0", rank=1)
    adapter = module.get_submodule("0")
    assert isinstance(adapter, bali.LowRankAdapted)
    assert {p.dtype for p in adapter.parameters()} == {torch.float64}
    module.get_submodule("2").requires_grad_(True)
    run = inference(module, n_data=20)
    run.step(x, y)
    assert list(run.posteriors) == ["0.down", "0.up", "2"]


@pytest.mark.parametrize(
    ("names", "rank", "message"),
    [
        (["1"], 1, r"'1' is no nn.Linear inside the module.*there are \['0', '2'\]"),
        (["0", "9"], 1, "'9' is no nn.Linear"),
        ([], 1, "at least one name"),
        (["0"], 0, "rank of at least 1"),
    ],
)
def test_adapters_of_other_modules_are_refused_and_nothing_changes(names: list[str], rank: int, message: str) -> None:
    module = mlp((3, 4, 1))
    with pytest.raises(ValueError, match=message):
        bali.lora(module, names, rank)
    assert all(p.requires_grad for p in module.parameters())
    assert isinstance(module[0], nn.Linear)


def test_projections_inside_torchs_attention_have_no_adapters() -> None:
    module = nn.ModuleDict({"attention": nn.MultiheadAttention(4, 2), "head": nn.Linear(4, 1)})
    with pytest.raises(ValueError, match=r"'attention\.out_proj' is no nn\.Linear inside the module"):
        bali.lora(module, ["attention.out_proj"], 1)


class Twice(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = mlp((3, 3)), mlp((3, 2), seed=1)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.tanh(self.body(torch.tanh(self.body(x)))))


def test_adapters_of_layers_that_are_called_twice() -> None:
    module = bali.lora(Twice(), ["body.0"], 1)
    x, y = randn(20, 3, seed=1), torch.randint(2, (20,), generator=seeded(2))
    run = inference(module, "categorical", 20)
    run.step(x, y)
    assert list(run.posteriors) == ["body.0.down", "body.0.up"]
