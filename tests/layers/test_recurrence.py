"""Recurrent layers: the module's own outputs in every option, and the posterior of gates written with linear layers."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_sequence

import bali
from bali.inference.network import Network
from bali.layers.kinds import find_layers
from support.networks import data, inference, linears, mlp, randn
from support.posteriors import assert_same_posterior
from support.sequences import Headed, OverTime, Sequences
from support.tolerances import EXACT, STEPS

N, TIME, SIZE, HIDDEN = 4, 3, 2, 3
KINDS = [nn.RNN, nn.LSTM, nn.GRU]
CELLS = [nn.RNNCell, nn.LSTMCell, nn.GRUCell]
each_kind = pytest.mark.parametrize("kind", KINDS)

OPTIONS: dict[str, dict[str, Any]] = {
    "plain": {},
    "no bias": {"bias": False},
    "batch first": {"batch_first": True},
    "two layers": {"num_layers": 2},
    "both directions": {"bidirectional": True, "batch_first": True},
    "dropout": {"num_layers": 3, "dropout": 0.4},
    "all": {"num_layers": 2, "bidirectional": True, "dropout": 0.3, "bias": False, "batch_first": True},
}


class Told(nn.Module):
    """The module's outputs and last states in one tensor, and first states that are given to it."""

    def __init__(self, inner: nn.Module, first: Any) -> None:
        super().__init__()
        self.inner, self.first = inner, first

    def forward(self, x: Tensor) -> Tensor:
        output, last = self.inner(x, self.first) if self.first is not None else self.inner(x)
        return torch.cat([part.flatten() for part in (output, *((last,) if isinstance(last, Tensor) else last))])[:, None]


def made(kind: Any, **options: Any) -> Any:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return kind(SIZE, HIDDEN, **options).double()


def assert_same_as_own(module: nn.Module, x: Tensor) -> None:
    network = Network(module)
    for training in (True, False):
        module.train(training)
        with torch.random.fork_rng():
            torch.manual_seed(3)
            own = module(x)
            torch.manual_seed(3)  # dropout takes the same numbers
            output, _ = network.forward(x)
        torch.testing.assert_close(output, own, rtol=EXACT, atol=EXACT)


@each_kind
@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS.keys())
@pytest.mark.parametrize("given", [False, True], ids=["from zero", "first states given"])
@pytest.mark.parametrize("shape", [(N, TIME, SIZE), (TIME, SIZE)], ids=["batch", "single sequence"])
def test_outputs_are_the_modules_own(kind: Any, options: dict[str, Any], given: bool, shape: tuple[int, ...]) -> None:
    module, x = made(kind, **options), randn(*shape, seed=1)
    n = () if len(shape) == 2 else (N if module.batch_first else TIME,)
    lead = module.num_layers * (1 + module.bidirectional)
    first: Any = randn(lead, *n, HIDDEN, seed=2) if given else None
    if given and kind is nn.LSTM:
        first = (first, randn(lead, *n, HIDDEN, seed=3))
    assert_same_as_own(Told(module, first), x)


def test_relu_is_the_modules_own() -> None:
    assert_same_as_own(Told(made(nn.RNN, nonlinearity="relu"), None), randn(N, TIME, SIZE, seed=1))


@pytest.mark.parametrize("kind", CELLS)
@pytest.mark.parametrize("bias", [True, False])
def test_cells_of_a_single_example_are_their_own(kind: Any, bias: bool) -> None:
    class Single(nn.Module):
        def __init__(self, cell: nn.RNNCellBase) -> None:
            super().__init__()
            self.cell = cell

        def forward(self, x: Tensor) -> Tensor:
            state: Any = None
            for at in x:
                state = self.cell(at, state)
            return (state if isinstance(state, Tensor) else state[0])[None]

    assert_same_as_own(Single(made(kind, bias=bias)), randn(TIME, SIZE, seed=1))


@each_kind
def test_layers_and_directions_have_posteriors_of_their_own(kind: Any) -> None:
    names = list(find_layers(made(kind, num_layers=2, bidirectional=True)))
    gates = [name for name in names if name.endswith("gates")]
    assert gates == ["l0.gates", "l0_reverse.gates", "l1.gates", "l1_reverse.gates"]
    assert len(names) == (12 if kind is nn.GRU else 4)


# --- the posterior --------------------------------------------------------------------------------------------------


class Gated(nn.Module):
    """A linear layer on (x, h) at every step, and the cell's arithmetic by hand."""

    def __init__(self, module: nn.LSTM | nn.RNN | nn.GRU) -> None:
        super().__init__()
        self.kind = type(module)
        of_input, of_hidden, bias, other_bias = module.parameters()
        rows = 2 * HIDDEN if isinstance(module, nn.GRU) else len(bias)
        self.gates = linear(torch.cat([of_input, of_hidden], dim=1)[:rows], (bias + other_bias)[:rows])
        if isinstance(module, nn.GRU):
            self.new_input = linear(of_input[rows:], bias[rows:])
            self.new_hidden = linear(of_hidden[rows:], other_bias[rows:])

    def forward(self, x: Tensor) -> Tensor:
        h = c = torch.zeros(len(x), HIDDEN).double()
        outputs = []
        for at in x.unbind(1):
            z = self.gates(torch.cat([at, h], dim=1))
            if self.kind is nn.RNN:
                h = z.tanh()
            elif self.kind is nn.LSTM:
                i, f, g, o = z.split(HIDDEN, dim=1)
                c = f.sigmoid() * c + i.sigmoid() * g.tanh()
                h = o.sigmoid() * c.tanh()
            else:
                r, u = z.sigmoid().split(HIDDEN, dim=1)
                new = torch.tanh(self.new_input(at) + r * self.new_hidden(h))
                h = (1.0 - u) * new + u * h
            outputs.append(h)
        return torch.stack(outputs, dim=1)


def linear(weight: Tensor, bias: Tensor) -> nn.Linear:
    module = nn.Linear(weight.shape[1], weight.shape[0]).double()
    module.load_state_dict({"weight": weight, "bias": bias})
    return module


def head() -> nn.Linear:
    return linears(mlp((TIME * HIDDEN, 2), seed=3))[0]


@each_kind
@pytest.mark.parametrize("form", ["batch first", "time first", "cell"])
def test_the_posterior_is_that_of_linear_gates(kind: Any, form: str) -> None:
    x, y = data("gaussian", 8, TIME * SIZE, 2)
    x, weight = x.reshape(8, TIME, SIZE), torch.linspace(0.2, 2.0, 8)
    module = made(kind, batch_first=form == "batch first")
    by_hand = Gated(module)
    if form == "cell":
        cell = made(CELLS[KINDS.index(kind)])
        cell.load_state_dict({name.removesuffix("_l0"): value for name, value in module.state_dict().items()})
        body: nn.Module = OverTime(cell)
    else:
        body = Sequences(module, first=form == "time first")
    runs = [inference(Headed(part, head()), n_data=20, reparam="none") for part in (body, by_hand)]
    for _ in range(4):
        for run in runs:
            run.step(x, y, sample_weight=weight)
    for one, two in zip(runs[0].posteriors.values(), runs[1].posteriors.values(), strict=True):
        assert_same_posterior(one, two, STEPS)


def test_steps_in_time_are_rows_that_share_the_weight_of_their_example() -> None:
    """A recurrence that forgets at once, with inputs that are all the same, has the inputs of a linear layer."""
    x, y = data("gaussian", 8, SIZE, 2)
    module = made(nn.RNN, batch_first=True)
    with torch.no_grad():
        module.weight_hh_l0.zero_()
    run = inference(Headed(Sequences(module), head()), n_data=8, reparam="none", prior_variance=2.0)
    run.step(x[:, None].expand(8, TIME, SIZE), y)
    found = run.posteriors["body.inner.l0.gates"].precision.dense()[:SIZE, :SIZE]
    torch.testing.assert_close(found, x.T @ x + 0.5 * torch.eye(SIZE).double(), rtol=EXACT, atol=EXACT)


# --- what is refused ------------------------------------------------------------------------------------------------


def test_packed_sequences_and_wrong_states_are_refused() -> None:
    class Packed(nn.Module):
        def __init__(self, inner: nn.Module) -> None:
            super().__init__()
            self.inner = inner

        def forward(self, x: Tensor) -> Tensor:
            return self.inner(pack_sequence([x[0], x[1]]))[0].data

    with pytest.raises(bali.UnsupportedLayerError, match="'inner' \\(LSTM\\) was given a packed sequence"):
        Network(Packed(made(nn.LSTM))).forward(randn(2, TIME, SIZE, seed=1))
    with pytest.raises(ValueError, match="'inner' needs 1 first states of shape"):
        Network(Told(made(nn.GRU), randn(2, TIME, HIDDEN, seed=1))).forward(randn(N, TIME, SIZE, seed=1))


def test_a_partly_frozen_layer_is_refused_and_a_frozen_one_stays() -> None:
    module = made(nn.LSTM, num_layers=2, batch_first=True)
    module.weight_hh_l0.requires_grad_(False)
    with pytest.raises(bali.UnsupportedLayerError, match=r"layer 'l0\.gates' is partly frozen"):
        find_layers(module)
    for name, parameter in module.named_parameters():
        parameter.requires_grad_("l1" in name)
    kept = module.weight_ih_l0.clone()
    run = inference(Headed(Sequences(module), head()), n_data=8)
    x, y = data("gaussian", 8, TIME * SIZE, 2)
    run.step(x.reshape(8, TIME, SIZE), y)
    assert list(run.posteriors) == ["body.inner.l1.gates", "head"]
    assert torch.equal(module.weight_ih_l0, kept)
