"""Every kind of layer under one contract. A new kind is one more row of the table."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest
import torch
from networks import assert_same_posteriors, inference, randn, seeded
from torch import Tensor, nn

import bali
from bali.gram import with_ones
from bali.health import layer_health
from bali.layer import Layer
from bali.layers import KINDS, StackedLinear, find_layers
from bali.prediction import Method

EXACT = 1e-10
N = 12


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


def outputs_of(layer: Layer, x: Tensor, weights: Tensor) -> Tensor:
    rows = layer.input_rows(x)
    return (with_ones(rows, None) if layer.has_bias else rows) @ weights


def singles(x: Tensor) -> list[Tensor]:
    return [x[i : i + 1] for i in range(len(x))]


def test_every_kind_is_in_the_table() -> None:
    """Stacks, which have a leading dimension, have tests of their own."""
    assert {type(made(kind)) for kind in KIND.values()} == set(KINDS) - {StackedLinear}


@each_kind
def test_rows_times_the_weight_matrix_are_the_outputs(kind: Kind) -> None:
    module, x = made(kind), kind.inputs()
    (layer,) = find_layers(module).values()
    z = module(x).detach()
    rows = outputs_of(layer, x, layer.weights())
    assert layer.weights().shape[-2:] == (layer.n_inputs, layer.out_features)
    torch.testing.assert_close(rows, layer.output_rows(z), rtol=EXACT, atol=EXACT)
    assert torch.equal(layer.from_rows(layer.output_rows(z), z), z)
    replacement = torch.randn_like(layer.weights())
    layer.assign(replacement)
    assert torch.equal(layer.weights(), replacement)
    torch.testing.assert_close(
        outputs_of(layer, x, replacement), layer.output_rows(module(x).detach()), rtol=EXACT, atol=EXACT
    )


@each_kind
def test_rows_of_an_example_are_neighbours(kind: Kind) -> None:
    module, x = made(kind), kind.inputs()
    (layer,) = find_layers(module).values()
    z = module(x).detach()
    for of_all, of_each in (
        (layer.input_rows(x), [layer.input_rows(one) for one in singles(x)]),
        (layer.output_rows(z), [layer.output_rows(one) for one in singles(z)]),
    ):
        assert torch.equal(of_all, torch.cat(of_each, dim=-2))


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
    assert values[-1][1] == pytest.approx(values[-1][0], rel=1e-6)
    methods: tuple[Method, ...] = ("weight", "local", "closed-form")
    for method in methods:
        predictive = runs[0].predict(x, 20, method=method)
        assert isinstance(predictive, bali.predictive.RegressionPredictive)
        assert predictive.mean.shape == (N, 2)
        assert float((predictive.mean - y).square().mean()) < float(y.var())
    assert [layer.n_inputs for layer in layer_health(runs[0]).layers] == [p.n_inputs for p in runs[0].posteriors.values()]


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
    assert_same_posteriors(whole, resumed, rtol=0.0, atol=0.0)


def test_tokens_are_counted() -> None:
    """The precision of an embedding is diagonal: the prior's and how often each token occurs, scaled to N_eff rows."""
    kind = KIND["Embedding, sequence"]
    x, y = kind.inputs(), torch.randint(2, (N,), generator=seeded(2))
    run = inference(network(kind), "categorical", N, effective_size=100, prior_variance=2.0)
    run.step(x, y)
    counts = torch.bincount(x.flatten(), minlength=5) / x.numel() * 100.0
    torch.testing.assert_close(run.posteriors["0"].precision, torch.diag(counts.double() + 0.5))


def test_weights_of_examples_with_tokens_need_not_be_whole() -> None:
    kind = KIND["Embedding"]
    x, y = kind.inputs(), torch.randint(2, (N,), generator=seeded(2))
    run = inference(network(kind), "categorical", N, prior_variance=2.0)
    weight = torch.linspace(0.1, 0.9, N).double()
    run.step(x, y, sample_weight=weight)
    counts = torch.zeros(5, dtype=torch.float64).index_add(0, x, weight) / weight.sum() * N
    torch.testing.assert_close(run.posteriors["0"].precision, torch.diag(counts + 0.5))
