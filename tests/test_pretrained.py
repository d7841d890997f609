"""Posteriors over a part of a network, about weights that it has, and over adapters of low rank."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from networks import assert_same_posteriors, data, inference, mlp, parameters, randn, seeded
from torch import Tensor, nn

import bali
from bali.mniw import MNIW
from bali.moments import Moments

EXACT = 1e-10


# --- the prior's mean -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("update", ["mean", "natural"])
def test_one_layer_is_the_regression_with_its_weights_as_prior_mean(update: str) -> None:
    x, y = data("gaussian", 30, 3, 2)
    module = mlp((3, 2))
    linear = module[0]
    assert isinstance(linear, nn.Linear)
    mean = torch.cat([linear.weight.T, linear.bias[None]]).detach().clone()
    run = inference(module, n_data=30, prior_mean="weights", update=update, reparam="none", ema_rate=1.0)
    for _ in range(3):
        run.step(x, y)
    prior = MNIW.prior(4, 2, variance=10.0 / 4, noise=1e-4 * 30)
    prior = MNIW(mean, prior.precision, prior.scale, prior.dof)
    expected = prior.condition(Moments.of(x, y, bias=True))
    for part in ("mean", "precision", "scale"):
        torch.testing.assert_close(getattr(run.posteriors["0"], part), getattr(expected, part), rtol=1e-8, atol=1e-8)


def test_a_narrow_prior_keeps_the_weights_and_one_about_zero_does_not() -> None:
    x, y = data("gaussian", 30, 3, 2)
    found = {}
    for prior_mean in ("weights", "zero"):
        module = mlp((3, 5, 2))
        before = torch.cat([p.flatten() for p in parameters(module)])
        run = inference(module, n_data=30, prior_mean=prior_mean, prior_variance=1e-9, reparam="none")
        for _ in range(5):
            run.step(x, y)
        found[prior_mean] = float((torch.cat([p.flatten() for p in parameters(module)]) - before).abs().max())
    assert found["weights"] < 1e-4
    assert found["zero"] > 0.1


def test_a_resumed_run_has_the_first_weights_as_prior_mean(tmp_path: Path) -> None:
    x, y = data("gaussian", 30, 3, 2)
    whole, stopped = (inference(mlp((3, 5, 2)), n_data=30, prior_mean="weights") for _ in range(2))
    resumed = inference(mlp((3, 5, 2), seed=9), n_data=30, prior_mean="weights")
    for run in (whole, stopped):
        for _ in range(3):
            run.step(x, y)
    stopped.save(tmp_path / "run.bali")
    resumed.load(tmp_path / "run.bali")
    for run in (whole, resumed):
        for _ in range(3):
            run.step(x, y)
    assert_same_posteriors(whole, resumed, rtol=0.0, atol=0.0)
    about_zero = inference(mlp((3, 5, 2)), n_data=30)
    with pytest.raises(ValueError, match="the saved state has prior_mean weights, this inference has zero"):
        about_zero.load(tmp_path / "run.bali")


def test_prior_mean_is_checked() -> None:
    with pytest.raises(ValueError, match="prior_mean must be one of zero, weights"):
        inference(mlp((3, 2)), prior_mean="ones")


# --- a part of a network --------------------------------------------------------------------------------------------


def classifier() -> nn.Sequential:
    """With a batch norm, which needs no optimizer if it is outside of the part that is trained."""
    return nn.Sequential(
        mlp((3, 6)), nn.BatchNorm1d(6).double(), nn.Tanh(), mlp((6, 4), seed=1), nn.Tanh(), mlp((4, 2), seed=2)
    )


def test_only_the_named_modules_move() -> None:
    x, y = data("categorical", 30, 3, 2)
    module = classifier().eval()
    before = {name: p.detach().clone() for name, p in module.named_parameters()}
    run = inference(module, "categorical", 30, only=["3", "5"], prior_mean="weights")
    assert list(run.network.layers) == ["3.0", "5.0"]
    assert run.network.others == {}
    for _ in range(3):
        run.step(x, y)
    moved = {name for name, p in module.named_parameters() if not torch.equal(p, before[name])}
    assert {name.partition(".")[0] for name in moved} == {"3", "5"}
    assert all(p.requires_grad for p in module.parameters())


def test_only_the_last_layer_is_the_same_as_the_rest_frozen() -> None:
    x, y = data("gaussian", 30, 3, 2)
    modules = [mlp((3, 5, 4, 2)) for _ in range(2)]
    modules[1][:4].requires_grad_(False)
    runs = [inference(modules[0], n_data=30, only="4"), inference(modules[1], n_data=30)]
    for run in runs:
        for _ in range(4):
            run.step(x, y)
    assert_same_posteriors(*runs, rtol=0.0, atol=0.0)


def test_only_with_an_optimizer_trains_what_is_named() -> None:
    x, y = data("categorical", 30, 3, 2)
    run = inference(classifier(), "categorical", 30, only=["1", "5"], optimizer=lambda p: torch.optim.SGD(p, lr=0.1))
    assert list(run.network.layers) == ["5.0"]
    assert list(run.network.others) == ["1.weight", "1.bias"]
    run.step(x, y)
    assert not torch.equal(run.network.others["1.weight"], torch.ones(6).double())


REFUSED: dict[str, tuple[dict[str, Any], type[Exception], str]] = {
    "unknown": ({"only": ["7"]}, ValueError, "only names unknown modules \\['7'\\]"),
    "no layer": ({"only": ["2"]}, bali.UnsupportedLayerError, "modules \\['2'\\], named in `only`, have no nn.Linear"),
    "nothing": ({"only": []}, bali.UnsupportedLayerError, "named in `only`, have no nn.Linear"),
    "no optimizer": ({"only": ["1", "5"]}, bali.UnsupportedLayerError, "module '1' \\(BatchNorm1d\\)"),
}


@pytest.mark.parametrize(("options", "error", "message"), REFUSED.values(), ids=REFUSED.keys())
def test_wrong_names_are_refused(options: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        inference(classifier(), "categorical", **options)


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
    run = inference(adapted, "categorical", 200, prior_mean="weights", target_noise=False, ema_rate=0.3)
    assert list(run.network.layers) == ["0.down", "0.up", "2.down", "2.up"]
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
