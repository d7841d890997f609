"""Wide layers in blocks: against the layer in one piece where that is exact, and what every layer must be able to do."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import bali
from bali.inference.network import Network
from bali.inference.prediction import Method
from bali.layers.blocks import MAX_BLOCK, BlockedLinearLayer
from bali.layers.linear import LinearLayer
from support.networks import data, inference, linears, mlp, parameters, randn
from support.posteriors import assert_same_posteriors
from support.sequences import Letters
from support.tolerances import EXACT


def blocked(n_in: int, n_out: int, max_block: int, *, bias: bool = True) -> BlockedLinearLayer:
    return BlockedLinearLayer(LinearLayer("layer", nn.Linear(n_in, n_out, bias=bias).double()), max_block)


@pytest.mark.parametrize("bias", [True, False], ids=["bias", "no bias"])
@pytest.mark.parametrize("shape", [(7, 3), (3, 7), (12, 12), (8, 4), (1, 9)])
@pytest.mark.parametrize("max_block", [1, 3, 4, 6])
def test_rows_times_weights_are_the_outputs(shape: tuple[int, int], max_block: int, bias: bool) -> None:
    layer = blocked(*shape, max_block, bias=bias)
    x = randn(5, 2, shape[0], seed=1)
    expected = layer.module(x).detach()
    rows, weights = layer.input_rows(x), layer.weights()
    assert max(weights.shape[-2:]) <= max_block
    assert weights.shape[-2:] == (layer.n_inputs, layer.out_features)
    torch.testing.assert_close(layer.from_rows(rows @ weights, expected), expected, rtol=EXACT, atol=EXACT)
    before = parameters(layer.module)
    layer.assign(weights + 1.0)
    assert all(torch.equal(p, q + 1.0) for p, q in zip(parameters(layer.module), before, strict=True))


def whole_of(blocks: Tensor) -> Tensor:
    """(P, Q, b, e) to one matrix."""
    p, q, b, e = blocks.shape
    return blocks.transpose(1, 2).reshape(p * b, q * e)


def test_layers_that_are_narrow_enough_stay_whole() -> None:
    x, y = data("categorical", 30, 4, 3)
    runs = [inference(mlp((4, 9, 3)), "categorical", max_block=block) for block in (None, 10)]
    for run in runs:
        run.step(x, y)
    assert_same_posteriors(*runs)


def test_blocks_of_outputs_are_the_layer_in_one_piece_but_for_their_noise() -> None:
    """M does not depend on U, so that with reparam="none" the means are the same, step after step."""
    x, y = data("categorical", 30, 4, 9)
    whole, parts = (inference(mlp((4, 9)), "categorical", reparam="none", max_block=block) for block in (None, 5))
    for _ in range(4):
        whole.step(x, y)
        parts.step(x, y)
        one, two = whole.posteriors["0"], parts.posteriors["0"]
        assert two.mean.shape == (1, 2, 5, 5)
        torch.testing.assert_close(whole_of(two.mean)[:, :9], one.mean, rtol=EXACT, atol=EXACT)
        torch.testing.assert_close(two.precision.dense()[0, 0], one.precision.dense(), rtol=EXACT, atol=EXACT)
        torch.testing.assert_close(two.scale[0, 0], one.scale[:5, :5], rtol=EXACT, atol=EXACT)


def test_blocks_of_inputs_that_never_meet_are_exact() -> None:
    """Every row has inputs of one block only, so that XᵀX has no other; blocks then take their share of a longer step."""
    n_blocks, x = 3, torch.zeros(30, 12, dtype=torch.float64)
    for row in range(30):
        x[row, 4 * (row % 3) : 4 * (row % 3) + 4] = randn(4, seed=row)
    y = data("categorical", 30, 12, 4)[1]

    def run(alpha: float, block: int | None) -> bali.LayerwiseInference:
        module = mlp((12, 4), bias=False)
        return inference(module, "categorical", reparam="none", step_size=alpha, max_block=block)

    whole, parts = run(0.3, None), run(0.3 * n_blocks, 4)
    for _ in range(5):
        whole.step(x, y)
        parts.step(x, y)
    one, two = whole.posteriors["0"], parts.posteriors["0"]
    assert two.mean.shape == (3, 1, 4, 4)
    torch.testing.assert_close(whole_of(two.mean), one.mean, rtol=EXACT, atol=EXACT)
    for k in range(n_blocks):
        own = slice(4 * k, 4 * k + 4)
        torch.testing.assert_close(two.precision.dense()[k, 0], one.precision.dense()[own, own], rtol=EXACT, atol=EXACT)


def test_the_prior_is_that_of_the_whole_layer() -> None:
    run = inference(mlp((20, 3)), "categorical", max_block=6)
    run.step(*data("categorical", 30, 20, 3))
    assert float(run.state.layers["0"].prior.precision.diagonal()[0]) == pytest.approx(21 / 10)


@pytest.mark.parametrize("reparam", ["weight", "local", "none"])
def test_networks_with_blocks_learn_predict_and_go_on(reparam: str, tmp_path: Path) -> None:
    x, y = data("categorical", 60, 5, 3)

    def start(seed: int) -> bali.LayerwiseInference:
        module = mlp((5, 10, 7, 3), seed=seed)
        return inference(module, "categorical", reparam=reparam, max_block=4, effective_size=30)

    run, other = start(0), start(1)
    values = [float(run.step(x, y, sample_weight=torch.ones(60))) for _ in range(30)]
    assert sum(values[-5:]) / 5 > values[0] + 0.2
    run.save(tmp_path / "run.bali")
    other.load(tmp_path / "run.bali")
    for one in (run, other):
        one.step(x, y)
    assert_same_posteriors(run, other)
    methods: tuple[Method, ...] = ("weight", "local")
    for method in methods:
        assert float(run.predict(x, 20, method=method).log_prob(y).mean()) > values[0]


def test_noise_of_outputs_is_the_sum_over_blocks() -> None:
    """Local noise and weight samples give outputs of one layer the same spread."""
    x, y = data("categorical", 40, 9, 4)
    run = inference(mlp((9, 4)), "categorical", max_block=3, effective_size=10)
    run.step(x, y)
    (layer,) = linears(run.module)
    outputs = {}
    methods: tuple[Method, ...] = ("weight", "local")
    for method in methods:
        seen: list[Tensor] = []
        handle = run.module.register_forward_hook(lambda _m, _x, z, seen=seen: seen.append(z))
        run.predict(x[:2], 2000, method=method)
        handle.remove()
        outputs[method] = torch.stack([z for z in seen if len(z) == 2])
    assert layer.out_features == 4
    spread = {method: z.std(0) for method, z in outputs.items()}
    torch.testing.assert_close(spread["weight"], spread["local"], rtol=0.12, atol=0.0)  # 1.6 % standard error each


def test_outputs_of_a_regression_stay_whole() -> None:
    """Its noise is that of the observations, and so one matrix, however wide the layer."""
    x, y = data("gaussian", 30, 4, 7)
    run = inference(mlp((4, 9, 7)), max_block=5)
    run.step(x, y)
    assert isinstance(run.setup.network.layers["0"], BlockedLinearLayer)
    assert run.posteriors["2"].mean.shape == (10, 7)
    classes = inference(mlp((4, 9, 7)), "categorical", max_block=5)
    assert isinstance(classes.setup.network.layers["2"], BlockedLinearLayer)


def test_only_very_wide_layers_are_cut_unless_told_otherwise() -> None:
    """By the rule of the library, which looks at inputs, their column of ones, and outputs."""
    widths = {"0": (MAX_BLOCK - 1, 2), "1": (2, MAX_BLOCK), "2": (MAX_BLOCK, 2), "3": (2, MAX_BLOCK + 1)}
    layers = Network(nn.Sequential(*(nn.Linear(*width) for width in widths.values()))).layers
    assert {name for name, layer in layers.items() if isinstance(layer, BlockedLinearLayer)} == {"2", "3"}


def test_layers_inside_of_others_can_be_in_blocks() -> None:
    """The last map of attention is a linear layer; the prior's mean may be that of its blocks."""
    torch.manual_seed(0)
    module = Letters(4, 3).double()
    run = inference(module, "categorical", max_block=3, about_weights=True)
    assert run.state.layers["attention.out_proj"].prior.mean.shape == (2, 2, 3, 2)
    x, y = data("categorical", 40, 4, 3)
    values = [float(run.step(x, y)) for _ in range(20)]
    assert sum(values[-5:]) / 5 > values[0]
