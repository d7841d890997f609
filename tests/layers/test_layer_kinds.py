"""Every kind of layer under one contract. A new kind is one more row of the table."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import bali
from bali.conjugate.moments import with_ones
from bali.conjugate.rows import Tokens
from bali.conjugate.symmetric import Diagonal
from bali.inference.network import Network
from bali.inference.prediction import Method
from bali.layers.kinds import COMPOSITES, KINDS
from bali.layers.layer import Layer
from bali.layers.modules import StackedLinear
from support.networks import inference, randn, seeded
from support.posteriors import assert_same_posteriors
from support.sequences import OverTime, Sequences
from support.tolerances import EXACT, MANY_STEPS

N = 12


def steps(features: int) -> Tensor:
    return randn(N, 3, features, seed=1)


class Kind(NamedTuple):
    build: Callable[[], nn.Module]
    inputs: Callable[[], Tensor]
    n_outputs: int  # of all that an example's outputs have, flattened


KIND: dict[str, Kind] = {
    "Linear": Kind(lambda: nn.Linear(3, 4), lambda: randn(N, 3, seed=1), 4),
    "Linear, middle dimension": Kind(lambda: nn.Linear(3, 4, bias=False), lambda: randn(N, 2, 3, seed=1), 8),
    "Conv1d": Kind(lambda: nn.Conv1d(2, 3, 2, dilation=2), lambda: randn(N, 2, 5, seed=1), 9),
    "Conv2d": Kind(lambda: nn.Conv2d(2, 3, 2, bias=False), lambda: randn(N, 2, 3, 3, seed=1), 12),
    "Conv2d, groups": Kind(lambda: nn.Conv2d(2, 4, 3, padding=1, stride=2, groups=2), lambda: randn(N, 2, 3, 3, seed=1), 16),
    "Conv3d": Kind(lambda: nn.Conv3d(1, 2, 3, padding="same"), lambda: randn(N, 1, 2, 2, 2, seed=1), 16),
    "Embedding": Kind(lambda: nn.Embedding(5, 3), lambda: torch.randint(5, (N,), generator=seeded(1)), 3),
    "Embedding, sequence": Kind(lambda: nn.Embedding(5, 3), lambda: torch.randint(5, (N, 2), generator=seeded(1)), 6),
    "MultiheadAttention": Kind(lambda: Sequences(nn.MultiheadAttention(4, 2, batch_first=True)), lambda: steps(4), 12),
    "MultiheadAttention, positions first": Kind(
        lambda: Sequences(nn.MultiheadAttention(4, 2, bias=False), first=True), lambda: steps(4), 12
    ),
    "RNN": Kind(lambda: Sequences(nn.RNN(2, 3, batch_first=True)), lambda: steps(2), 9),
    "LSTM": Kind(lambda: Sequences(nn.LSTM(2, 3), first=True), lambda: steps(2), 9),
    "LSTM, layers": Kind(
        lambda: Sequences(nn.LSTM(2, 2, 2, batch_first=True, bidirectional=True, bias=False)), lambda: steps(2), 12
    ),
    "GRU": Kind(lambda: Sequences(nn.GRU(2, 3, batch_first=True)), lambda: steps(2), 9),
    "RNNCell": Kind(lambda: OverTime(nn.RNNCell(2, 3, nonlinearity="relu")), lambda: steps(2), 9),
    "LSTMCell": Kind(lambda: OverTime(nn.LSTMCell(2, 3)), lambda: steps(2), 9),
    "GRUCell": Kind(lambda: OverTime(nn.GRUCell(2, 3, bias=False)), lambda: steps(2), 9),
}
each_kind = pytest.mark.parametrize("kind", KIND.values(), ids=KIND.keys())


def made(kind: Kind) -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return kind.build().double()


def network(kind: Kind, n_outputs: int = 2) -> nn.Module:
    first = made(kind)
    with torch.random.fork_rng():
        torch.manual_seed(1)
        return nn.Sequential(first, nn.Tanh(), nn.Flatten(), nn.Linear(kind.n_outputs, n_outputs).double())


def written_out(rows: Tensor | Tokens) -> Tensor:
    """Rows of tokens as rows of zeros and ones."""
    return functional.one_hot(rows.index, rows.n_tokens).to(rows.dtype) if isinstance(rows, Tokens) else rows


def assert_rows_times_weights_are_outputs(module: nn.Module, x: Tensor) -> None:
    network = Network(module)
    output, calls = network.forward(x)
    torch.testing.assert_close(output, module(x), rtol=EXACT, atol=EXACT)
    for name, layer in network.layers.items():
        weights = layer.weights()
        assert weights.shape[-2:] == (layer.n_inputs, layer.out_features)
        for call in calls[name]:
            rows, z = written_out(layer.input_rows(call.x)), call.z.detach()
            outputs = (with_ones(rows, None) if layer.has_bias else rows) @ weights
            torch.testing.assert_close(outputs, layer.output_rows(z), rtol=EXACT, atol=EXACT)
            assert torch.equal(layer.from_rows(layer.output_rows(z), z), z)


def singles(x: Tensor) -> list[Tensor]:
    return [x[i : i + 1] for i in range(len(x))]


def test_every_kind_is_in_the_table() -> None:
    """Stacks, which have a leading dimension, have tests of their own."""
    found = {type(part) for kind in KIND.values() for part in made(kind).modules()}
    assert found >= (set(KINDS) | set(COMPOSITES)) - {StackedLinear}


@each_kind
def test_rows_times_the_weight_matrix_are_the_outputs(kind: Kind) -> None:
    """And the module's own output is that of its linear maps, also with weights that were written into it."""
    module, x = made(kind), kind.inputs()
    assert_rows_times_weights_are_outputs(module, x)
    for layer in Network(module).layers.values():
        replacement = torch.randn_like(layer.weights())
        layer.assign(replacement)
        assert torch.equal(layer.weights(), replacement)
    assert_rows_times_weights_are_outputs(module, x)


@each_kind
def test_rows_of_an_example_are_neighbours(kind: Kind) -> None:
    network, x = Network(made(kind)), kind.inputs()
    calls, alone = network.forward(x)[1], [network.forward(one)[1] for one in singles(x)]

    def joined(rows_of: Callable[[Layer], Callable[[Tensor], Tensor | Tokens]], part: str, name: str, i: int) -> None:
        layer = network.layers[name]
        whole, *each = (written_out(rows_of(layer)(getattr(found[name][i], part))).detach() for found in (calls, *alone))
        torch.testing.assert_close(whole, torch.cat(each, dim=-2), rtol=EXACT, atol=EXACT)

    for name, own in calls.items():
        for i in range(len(own)):
            joined(lambda layer: layer.input_rows, "x", name, i)
            joined(lambda layer: layer.output_rows, "z", name, i)


@each_kind
@pytest.mark.parametrize("reparam", ["weight", "local", "none"])
def test_a_network_with_it_learns_and_predicts(kind: Kind, reparam: str) -> None:
    """Targets are a network's own outputs, and inputs repeat; weights of one and no weights are the same."""
    x = kind.inputs()
    with torch.no_grad():
        y = 3.0 * network(kind)(x).tanh()
    runs = [inference(network(kind), n_data=N, reparam=reparam) for _ in range(2)]
    values = [
        [float(run.step(x, y, sample_weight=w)) for run, w in zip(runs, (None, torch.ones(N)), strict=True)]
        for _ in range(25)
    ]
    assert values[-1][0] > values[0][0]
    assert values[-1][1] == pytest.approx(values[-1][0], rel=MANY_STEPS)
    methods: tuple[Method, ...] = ("weight", "local", "closed-form")
    for method in methods:
        predictive = runs[0].predict(x, 20, method=method)
        assert isinstance(predictive, bali.predictive.mixtures.RegressionPredictive)
        assert predictive.mean.shape == (N, 2)
        assert float((predictive.mean - y).square().mean()) < float(y.var())
    assert [layer.n_inputs for layer in runs[0].health().layers] == [p.n_inputs for p in runs[0].posteriors.values()]


@each_kind
def test_a_resumed_run_equals_an_uninterrupted_one(kind: Kind, tmp_path: Path) -> None:
    x, y = kind.inputs(), torch.randint(2, (N,), generator=seeded(2))
    whole, stopped, resumed = (inference(network(kind), "categorical", N) for _ in range(3))
    for run in (whole, stopped):
        run.step(x, y)
    stopped.save(tmp_path / "run.bali")
    resumed.load(tmp_path / "run.bali")
    for run in (whole, resumed):
        run.step(x, y)
    assert_same_posteriors(whole, resumed)


def test_tokens_are_counted() -> None:
    """The precision of an embedding is diagonal: the prior's and how often each token occurs, scaled to N_eff rows."""
    kind = KIND["Embedding, sequence"]
    x, y = kind.inputs(), torch.randint(2, (N,), generator=seeded(2))
    run = inference(network(kind), "categorical", N, effective_size=100, prior_variance=2.0)
    run.step(x, y)
    counts = torch.bincount(x.flatten(), minlength=5) / x.numel() * 100.0
    assert isinstance(run.posteriors["0"].precision, Diagonal)
    torch.testing.assert_close(run.posteriors["0"].precision.diagonal(), counts.double() + 0.5)


def test_weights_of_examples_with_tokens_need_not_be_whole() -> None:
    kind = KIND["Embedding"]
    x, y = kind.inputs(), torch.randint(2, (N,), generator=seeded(2))
    run = inference(network(kind), "categorical", N, prior_variance=2.0)
    weight = torch.linspace(0.1, 0.9, N).double()
    run.step(x, y, sample_weight=weight)
    counts = torch.zeros(5, dtype=torch.float64).index_add(0, x, weight) / weight.sum() * N
    torch.testing.assert_close(run.posteriors["0"].precision.diagonal(), counts + 0.5)
