"""Which modules have a posterior, what is refused, and stacks of networks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrizations

import bali
from bali.layers.kinds import find_layers
from bali.layers.linear import LinearLayer
from bali.layers.modules import StackedLinear
from bali_benchmarks.some_members import take_members
from support.networks import batches, data, inference, mlp, randn
from support.posteriors import assert_same_members, assert_same_posterior, member
from support.tolerances import STEPS as STACKED  # batched and single matrix products round differently

K = 3
STEPS = 6


# --- what is found --------------------------------------------------------------------------------------------------


def test_layers_are_found_at_any_depth_and_in_order() -> None:
    module = nn.ModuleDict(
        {
            "head": nn.Linear(2, 3),
            "body": nn.Sequential(nn.Sequential(nn.Linear(3, 3), nn.Tanh()), nn.ModuleList([nn.Linear(3, 1)])),
        }
    )
    assert list(find_layers(module)) == ["head", "body.0.0", "body.1.0"]


@pytest.mark.parametrize("linear", [nn.Linear(3, 2), nn.Linear(3, 2, bias=False), StackedLinear(K, 3, 2)], ids=str)
def test_weight_matrix_has_the_bias_last(linear: nn.Linear | StackedLinear) -> None:
    layer = LinearLayer("layer", linear)
    x = randn(5, 3, seed=0, dtype=torch.float32)
    rows = torch.cat([x, torch.ones(5, 1)], 1) if layer.has_bias else x
    torch.testing.assert_close(rows @ layer.weights(), linear(x).detach())
    replacement = torch.randn(layer.weights().shape)
    layer.assign(replacement)
    assert torch.equal(layer.weights(), replacement)
    torch.testing.assert_close(rows @ replacement, linear(x).detach())


# --- what is refused ------------------------------------------------------------------------------------------------


class Scaled(nn.Linear):
    def forward(self, input: Tensor) -> Tensor:
        return 2.0 * super().forward(input)


class OwnParameter(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scale, self.linear = nn.Parameter(torch.ones(1)), nn.Linear(3, 2)


def between(module: nn.Module) -> nn.Sequential:
    return nn.Sequential(nn.Linear(3, 3), module, nn.Linear(3, 1))


def tied() -> nn.Module:
    module = between(nn.Linear(3, 3))
    module[1].weight = module[0].weight
    return module


def partly_frozen() -> nn.Module:
    module = between(nn.Tanh())
    module[2].weight.requires_grad_(False)
    return module


class OwnAttention(nn.MultiheadAttention):
    def forward(self, query: Tensor, *_rest: Any, **_options: Any) -> tuple[Tensor, None]:
        return query, None


def frozen_bias() -> nn.Module:
    module = between(nn.MultiheadAttention(3, 1))
    module[1].in_proj_bias.requires_grad_(False)
    return module


def tied_attention() -> nn.Module:
    module = nn.Sequential(nn.Linear(3, 3), nn.MultiheadAttention(3, 1), nn.MultiheadAttention(3, 1))
    module[2].in_proj_weight = module[1].in_proj_weight
    return module


def tied_recurrence() -> nn.Module:
    module = nn.Sequential(nn.Linear(3, 3), nn.LSTM(3, 3), nn.LSTM(3, 3))
    module[2].weight_hh_l0 = module[1].weight_hh_l0
    return module


def old_weight_norm() -> nn.Module:
    with pytest.warns(FutureWarning, match="weight_norm"):
        return between(torch.nn.utils.weight_norm(nn.Linear(3, 3)))


def weight_norm_with_frozen_weight() -> nn.Module:
    module = between(parametrizations.weight_norm(nn.Linear(3, 3)))
    module[1].parametrizations.requires_grad_(False)
    return module


REFUSED: dict[str, tuple[Callable[[], nn.Module], str]] = {
    "tied weights": (tied, "'1.weight' and '0.weight' are one tied parameter"),
    "a layer in two places": (lambda: nn.Sequential(*[nn.Linear(3, 3)] * 2), "'1.weight' and '0.weight'"),
    "batch norm": (lambda: between(nn.BatchNorm1d(3)), r"'1' \(BatchNorm1d\)"),
    "layer norm": (lambda: between(nn.LayerNorm(3)), r"'1' \(LayerNorm\)"),
    "transposed convolution": (lambda: between(nn.ConvTranspose1d(3, 3, 1)), r"'1' \(ConvTranspose1d\)"),
    "bag of embeddings": (lambda: between(nn.EmbeddingBag(3, 3)), r"'1' \(EmbeddingBag\)"),
    "embedding with padding": (lambda: between(nn.Embedding(3, 3, padding_idx=0)), r"'1' \(Embedding\) has padding_idx"),
    "embedding of bounded norm": (lambda: between(nn.Embedding(3, 3, max_norm=1.0)), r"'1' \(Embedding\) has padding_idx"),
    "bilinear": (lambda: between(nn.Bilinear(3, 3, 3)), r"'1' \(Bilinear\)"),
    "attention with keys beside": (
        lambda: between(nn.MultiheadAttention(3, 1, add_bias_kv=True)),
        r"'1' \(MultiheadAttention\) has trainable parameters \['bias_k', 'bias_v'\]",
    ),
    "attention with a forward of its own": (lambda: between(OwnAttention(3, 1)), r"'1' \(OwnAttention\) has a forward"),
    "attention, partly frozen": (frozen_bias, r"layer '1.q' is partly frozen: freeze all of \['in_proj_weight'"),
    "attention, tied": (tied_attention, "'2.in_proj_weight' and '1.in_proj_weight' are one tied parameter"),
    "recurrent layers, tied": (tied_recurrence, "'2.weight_hh_l0' and '1.weight_hh_l0' are one tied parameter"),
    "recurrent projection": (lambda: between(nn.LSTM(3, 3, proj_size=2)), r"'1' \(LSTM\) has proj_size"),
    "recurrent weight norm": (
        lambda: between(parametrizations.weight_norm(nn.GRU(3, 3), "weight_hh_l0")),
        "kind ParametrizedGRU computes one of .*'weight_hh_l0'",
    ),
    "own parameter": (OwnParameter, r"'\(the module itself\)' \(OwnParameter\)"),
    "partly frozen": (partly_frozen, "layer '2' is partly frozen"),
    "weight norm": (lambda: between(parametrizations.weight_norm(nn.Linear(3, 3))), "layer '1'"),
    "weight norm, weight frozen": (weight_norm_with_frozen_weight, "layer '1'"),
    "weight norm by hook": (old_weight_norm, "layer '1'"),
    "forward of its own": (lambda: between(Scaled(3, 3)), r"layer '1' \(Scaled\)"),
    "stacked and single": (lambda: between(StackedLinear(K, 3, 3)), "mixed"),
    "other numbers of members": (lambda: nn.Sequential(StackedLinear(2, 3, 3), StackedLinear(3, 3, 3)), "differ"),
    "no linear layer": (nn.Tanh, "no nn.Linear"),
    "all frozen": (lambda: nn.Linear(3, 2).requires_grad_(False), "no nn.Linear"),
}


@pytest.mark.parametrize(("build", "message"), REFUSED.values(), ids=REFUSED.keys())
def test_what_cannot_be_treated_is_refused_by_name(build: Callable[[], nn.Module], message: str) -> None:
    module = build()
    with pytest.raises(bali.UnsupportedLayerError, match=message):
        inference(module)


@pytest.mark.parametrize("extra", [nn.BatchNorm1d(3), nn.LayerNorm(3), nn.Linear(3, 3), Scaled(3, 3)], ids=str)
def test_frozen_modules_of_any_kind_are_accepted(extra: nn.Module) -> None:
    assert list(find_layers(between(extra.requires_grad_(False)))) == ["0", "2"]


# --- stacks ---------------------------------------------------------------------------------------------------------


class NoisePlayback:
    """Keeps the standard normal numbers of a stacked run, and hands member k its share of them."""

    def __init__(self) -> None:
        self.real, self.kept, self.member, self.position = torch.randn, list[Tensor](), -1, 0

    def play(self, member: int) -> None:
        self.member, self.position = member, 0

    def __call__(self, *args: Any, **kwargs: Any) -> Tensor:
        if self.member < 0:
            self.kept.append(self.real(*args, **kwargs))
            return self.kept[-1]
        self.position += 1
        return self.kept[self.position - 1][self.member]


@pytest.mark.parametrize("reparam", ["weight", "local", "none"])
@pytest.mark.parametrize("likelihood", ["gaussian", "categorical"])
@pytest.mark.parametrize("own_data", [False, True], ids=["shared data", "own data"])
def test_a_stack_is_its_members_one_by_one(
    reparam: str, likelihood: str, own_data: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings: dict[str, Any] = {"n_data": 40, "reparam": reparam, "target_noise": reparam != "local"}
    modules = [mlp((4, 6, 5, 2), seed=k) for k in range(K)]
    per_member = [batches(*data(likelihood, 40, 4, 2, seed=k if own_data else 0), 16, STEPS) for k in range(K)]
    playback = NoisePlayback()
    monkeypatch.setattr(torch, "randn", playback)
    stacked = inference(bali.stack(modules), likelihood, **settings)
    values = []
    for step in range(STEPS):
        x, y = per_member[0][step]
        if own_data:
            x, y = (torch.stack([per_member[k][step][i] for k in range(K)]) for i in (0, 1))
        values.append(stacked.step(x, y))
    for k, module in enumerate(modules):
        playback.play(k)
        single = inference(module, likelihood, **settings)
        for step, (x, y) in enumerate(per_member[k]):
            torch.testing.assert_close(single.step(x, y), values[step][k], rtol=STACKED, atol=STACKED)
        assert playback.position == len(playback.kept)
        assert_same_members(stacked, {k: single}, STACKED)


def member_settings(*members: int) -> dict[str, Any]:
    """Step sizes and prior variances of some members of one stack."""
    alpha, variance = torch.tensor([0.2, 0.5, 1.0]), torch.tensor([0.3, 1.0, 3.0])
    return {"n_data": 40, "reparam": "none", "step_size": alpha[list(members)], "prior_variance": variance[list(members)]}


@pytest.mark.parametrize("likelihood", ["gaussian", "categorical"])
def test_members_can_have_their_own_settings_and_be_taken_out(likelihood: str) -> None:
    modules = [mlp((4, 6, 2), seed=k) for k in range(K)]
    x, y = data(likelihood, 40, 4, 2)
    stacked = inference(bali.stack(modules), likelihood, **member_settings(0, 1, 2))
    singles = [inference(bali.stack(modules[k : k + 1]), likelihood, **member_settings(k)) for k in range(K)]
    for _ in range(3):
        for run in (stacked, *singles):
            run.step(x, y)
    taken = take_members(stacked, [2, 0])
    for run in (stacked, taken, *singles):
        run.step(x, y)
    for name, whole in stacked.posteriors.items():
        for k in range(K):
            assert_same_posterior(member(whole, k), member(singles[k].posteriors[name], 0), STACKED)
        for place, k in enumerate([2, 0]):
            assert_same_posterior(member(taken.posteriors[name], place), member(whole, k), STACKED)


@pytest.mark.parametrize("sizes", [(3, 2), (3, 5, 2)], ids=["one layer", "two layers"])
@pytest.mark.parametrize("method", ["weight", "local", "closed-form"])
def test_a_stack_predicts_a_mixture_of_its_members(sizes: tuple[int, ...], method: str) -> None:
    x, y = data("gaussian", 30, 3, 2)
    run = inference(bali.stack([mlp(sizes, seed=k) for k in range(K)]), n_data=30)
    run.step(x, y)
    predictive = run.predict(x, 4, method=method)  # type: ignore[arg-type]
    assert isinstance(predictive, bali.predictive.mixtures.RegressionPredictive)
    assert predictive.means.shape == (4 * K, 30, 2)
    assert predictive.covariance.shape == (30, 2, 2)
    assert bool(torch.isfinite(predictive.log_prob(y)).all())


def test_stacks_of_different_networks_are_refused() -> None:
    pairs: dict[str, list[nn.Module]] = {
        "in layer '0'": [mlp((3, 2, 1)), mlp((3, 4, 1))],
        "in the bias of layer '0'": [mlp((3, 2, 1)), mlp((3, 2, 1), bias=False)],
        "in module '1'": [mlp((3, 2, 1)), mlp((3, 2, 1), "relu")],
        "in module ''": [mlp((3, 2, 1)), mlp((3, 2, 2, 1))],
    }
    for message, modules in pairs.items():
        with pytest.raises(ValueError, match=message):
            bali.stack(modules)
    with pytest.raises(ValueError, match="at least one"):
        bali.stack([])
    with pytest.raises(bali.UnsupportedLayerError, match="BatchNorm1d"):
        bali.stack([between(nn.BatchNorm1d(3))])
    with pytest.raises(bali.UnsupportedLayerError, match="Scaled"):
        bali.stack([between(Scaled(3, 3))])


@pytest.mark.parametrize("shape", [(3,), (K + 1, 5, 3), (K, 5, 2, 3)])
def test_stacked_layers_refuse_ambiguous_inputs(shape: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="stacked layers take"):
        StackedLinear(K, 3, 2)(torch.zeros(shape))


def test_frozen_layers_stay_frozen_in_a_stack() -> None:
    modules = [mlp((3, 4, 4, 1), seed=k) for k in range(K)]
    for module in modules:
        module[2].requires_grad_(False)
    assert list(find_layers(bali.stack(modules))) == ["0", "4"]
