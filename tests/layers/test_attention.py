"""Attention: the module's own outputs in every option, and the posterior of the same network with linear layers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import bali
from bali.inference.network import Network
from bali.layers.kinds import find_layers
from support.networks import data, inference, linears, mlp, randn, seeded
from support.posteriors import assert_same_posterior
from support.sequences import Headed, Sequences
from support.tolerances import EXACT, STEPS

N, LENGTH, KEYS, SIZE, HEADS = 4, 3, 5, 6, 2


class Asked(nn.Module):
    """Attention with all that is passed to it but the queries fixed, on the other side of an `nn.Module`'s one input."""

    def __init__(self, attention: nn.MultiheadAttention, **options: Any) -> None:
        super().__init__()
        self.attention, self.options = attention, options
        self.weights: Tensor | None = None

    def forward(self, query: Tensor) -> Tensor:
        output, self.weights = self.attention(query, **self.options)
        return output


def attention(seed: int = 0, **options: Any) -> nn.MultiheadAttention:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        module = nn.MultiheadAttention(SIZE, HEADS, **({"batch_first": True} | options)).double()
        for parameter in module.parameters():
            nn.init.normal_(parameter, std=0.5)  # biases too, which torch sets to zero
    return module


BOOLEAN = torch.zeros(LENGTH, KEYS, dtype=torch.bool)
BOOLEAN[0, 2:] = BOOLEAN[1, 0] = True
PADDED = torch.zeros(N, KEYS, dtype=torch.bool)
PADDED[1, 3:] = PADDED[2, 4:] = True
CAUSAL = nn.Transformer.generate_square_subsequent_mask(LENGTH, dtype=torch.float64)

MODULES: dict[str, dict[str, Any]] = {
    "plain": {},
    "no bias": {"bias": False},
    "positions first": {"batch_first": False},
    "other keys and values": {"kdim": 4, "vdim": 3},
    "other keys, no bias": {"kdim": 4, "bias": False},
    "keys beside": {"add_bias_kv": True},
    "zero key": {"add_zero_attn": True},
    "both beside": {"add_bias_kv": True, "add_zero_attn": True},
    "dropout": {"dropout": 0.4},
}
CALLS: dict[str, dict[str, Any]] = {
    "plain": {},
    "no weights": {"need_weights": False},
    "weights of heads": {"average_attn_weights": False},
    "boolean mask": {"attn_mask": BOOLEAN},
    "boolean mask, no weights": {"attn_mask": BOOLEAN, "need_weights": False},
    "mask of numbers": {"attn_mask": randn(LENGTH, KEYS, seed=5)},
    "mask of heads": {"attn_mask": randn(N * HEADS, LENGTH, KEYS, seed=6)},
    "mask of heads, no weights": {"attn_mask": randn(N * HEADS, LENGTH, KEYS, seed=6), "need_weights": False},
    "padding": {"key_padding_mask": PADDED},
    "padding, no weights": {"key_padding_mask": PADDED, "need_weights": False},
    "padding and mask": {"key_padding_mask": PADDED, "attn_mask": BOOLEAN},
    "padding in numbers": {"key_padding_mask": randn(N, KEYS, seed=7), "attn_mask": randn(LENGTH, KEYS, seed=5)},
}


def inputs(module: nn.MultiheadAttention) -> tuple[Tensor, Tensor, Tensor]:
    shapes = ((LENGTH, SIZE), (KEYS, module.kdim), (KEYS, module.vdim))
    q, k, v = (randn(N, *shape, seed=i) for i, shape in enumerate(shapes, start=1))
    return (q, k, v) if module.batch_first else (q.transpose(0, 1), k.transpose(0, 1), v.transpose(0, 1))


def assert_same_as_own(module: Asked, query: Tensor, network: Network | None = None) -> None:
    network = Network(module, has_optimizer=True) if network is None else network
    for training in (True, False):
        module.train(training)
        with torch.random.fork_rng():
            torch.manual_seed(3)
            own, own_weights = module(query), module.weights
            torch.manual_seed(3)  # dropout takes the same numbers
            output, _ = network.forward(query)
        torch.testing.assert_close(output, own, rtol=EXACT, atol=EXACT)
        assert (own_weights is None) == (module.weights is None)
        if own_weights is not None:
            torch.testing.assert_close(module.weights, own_weights, rtol=EXACT, atol=EXACT)


@pytest.mark.parametrize("options", MODULES.values(), ids=MODULES.keys())
@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS.keys())
def test_outputs_are_the_modules_own(options: dict[str, Any], call: dict[str, Any]) -> None:
    module = attention(**options)
    query, key, value = inputs(module)
    assert_same_as_own(Asked(module, key=key, value=value, **call), query)


@pytest.mark.parametrize("need_weights", [True, False])
@pytest.mark.parametrize("padding", [None, torch.tensor([False, False, True])])
def test_the_hint_at_causality_changes_nothing(need_weights: bool, padding: Tensor | None) -> None:
    module, x = attention(), randn(N, LENGTH, SIZE, seed=1)
    call = {"attn_mask": CAUSAL, "is_causal": True, "need_weights": need_weights}
    masked = None if padding is None else torch.zeros(N, LENGTH).double().masked_fill(padding, -torch.inf)
    assert_same_as_own(Asked(module, key=x, value=x, key_padding_mask=masked, **call), x)


@pytest.mark.parametrize("mask", [None, BOOLEAN, torch.stack([BOOLEAN, BOOLEAN.flip(0)])], ids=["none", "2d", "of heads"])
@pytest.mark.parametrize("need_weights", [True, False])
def test_one_sequence_may_come_without_the_dimension_of_examples(mask: Tensor | None, need_weights: bool) -> None:
    module = attention()
    query, key, value = (x[0] for x in inputs(module))
    padding = PADDED[1]
    asked = Asked(module, key=key, value=value, attn_mask=mask, key_padding_mask=padding, need_weights=need_weights)
    assert_same_as_own(asked, query)


def test_bad_masks_are_named() -> None:
    module = attention()
    query, key, value = inputs(module)
    for options, message in (
        ({"attn_mask": BOOLEAN.T}, "attn_mask must have shape"),
        ({"key_padding_mask": PADDED[:, :2]}, "key_padding_mask must have shape"),
        ({"is_causal": True}, "attn_mask, which is needed"),
        ({"key_padding_mask": PADDED.int()}, "masks must be booleans or floating-point numbers"),
    ):
        with pytest.raises(ValueError, match=message):
            Network(Asked(module, key=key, value=value, **options)).forward(query)


# --- the posterior --------------------------------------------------------------------------------------------------


class ByHand(nn.Module):
    """Self-attention of four linear layers."""

    def __init__(self, packed: nn.MultiheadAttention) -> None:
        super().__init__()
        self.q, self.k, self.v, self.out = (nn.Linear(SIZE, SIZE).double() for _ in range(4))
        for i, part in enumerate((self.q, self.k, self.v)):
            rows = slice(i * SIZE, (i + 1) * SIZE)
            part.load_state_dict({"weight": packed.in_proj_weight[rows], "bias": packed.in_proj_bias[rows]})
        self.out.load_state_dict(packed.out_proj.state_dict())

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (part(x).unflatten(-1, (HEADS, -1)) for part in (self.q, self.k, self.v))
        scores = torch.einsum("nphd,nkhd->nhpk", q, k) / (SIZE // HEADS) ** 0.5
        return self.out(torch.einsum("nhpk,nkhd->nphd", scores.softmax(-1), v).flatten(2))


def head() -> nn.Linear:
    return linears(mlp((LENGTH * SIZE, 2), seed=3))[0]


@pytest.mark.parametrize("reparam", ["weight", "local", "none"])
@pytest.mark.parametrize("first", [False, True], ids=["examples first", "positions first"])
def test_the_posterior_is_that_of_four_linear_layers(reparam: str, first: bool) -> None:
    """Also with weights of the examples, which must find the rows of their example."""
    x, y = data("gaussian", 8, LENGTH * SIZE, 2)
    x, weight = x.reshape(8, LENGTH, SIZE), torch.linspace(0.2, 2.0, 8)
    packed = attention(batch_first=not first)
    by_hand = ByHand(packed)
    bodies = (Sequences(packed, first=first), by_hand)
    runs = [inference(Headed(body, head()), n_data=20, reparam=reparam) for body in bodies]
    for _ in range(4):
        for run in runs:
            run.step(x, y, sample_weight=weight)
    names = ["body.inner.q", "body.inner.k", "body.inner.v", "body.inner.out_proj", "head"]
    assert list(runs[0].posteriors) == names
    for one, two in zip(runs[0].posteriors.values(), runs[1].posteriors.values(), strict=True):
        assert_same_posterior(one, two, STEPS)
    assert "forward" not in vars(packed)


FROZEN: dict[str, tuple[Callable[[nn.MultiheadAttention], object], list[str]]] = {
    "in": (lambda m: [p.requires_grad_(False) for p in m.parameters(recurse=False)], ["inner.out_proj"]),
    "out": (lambda m: m.out_proj.requires_grad_(False), ["inner.q", "inner.k", "inner.v"]),
}


@pytest.mark.parametrize(("freeze", "left"), FROZEN.values(), ids=FROZEN.keys())
def test_projections_may_be_frozen(freeze: Callable[[nn.MultiheadAttention], object], left: list[str]) -> None:
    module = attention()
    freeze(module)
    before = {name: p.detach().clone() for name, p in module.named_parameters() if not p.requires_grad}
    network = Headed(Sequences(module), head())
    assert list(find_layers(network)) == [*(f"body.{name}" for name in left), "head"]
    x, y = data("gaussian", 8, LENGTH * SIZE, 2)
    run = inference(network, n_data=8)
    run.step(x.reshape(8, LENGTH, SIZE), y)
    assert before
    assert all(torch.equal(value, module.get_parameter(name)) for name, value in before.items())


def test_keys_beside_are_trained_by_an_optimizer() -> None:
    module = Headed(Sequences(attention(add_bias_kv=True)), head())
    x, y = data("gaussian", 8, LENGTH * SIZE, 2)
    run = inference(module, n_data=8, optimizer=lambda p: torch.optim.SGD(p, lr=0.1))
    assert list(run.setup.network.others) == ["body.inner.bias_k", "body.inner.bias_v"]
    before = [p.detach().clone() for p in run.setup.network.others.values()]
    run.step(x.reshape(8, LENGTH, SIZE), y)
    assert not any(torch.equal(p, b) for p, b in zip(run.setup.network.others.values(), before, strict=True))


class Encoder(nn.Module):
    """torch's own encoder with padding, whose short cut in evaluation mode calls no module."""

    def __init__(self, encoder: nn.TransformerEncoder) -> None:
        super().__init__()
        self.encoder, self.head = encoder, head()

    def forward(self, x: Tensor) -> Tensor:
        hidden = torch.zeros(x.shape[:2], dtype=torch.bool)
        hidden[:, 2:] = True
        return self.head(self.encoder(x, src_key_padding_mask=hidden).flatten(1)[:, : LENGTH * SIZE])


@pytest.mark.parametrize("norm_first", [False, True])
def test_torchs_encoder_trains_and_predicts(norm_first: bool) -> None:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        layer = nn.TransformerEncoderLayer(SIZE, HEADS, 8, dropout=0.1, batch_first=True, norm_first=norm_first)
        module = Encoder(nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)).double()
    x, y = randn(20, LENGTH, SIZE, seed=1), torch.randint(2, (20,), generator=seeded(2))
    run = inference(module, "categorical", 20, optimizer=lambda p: torch.optim.Adam(p, lr=1e-3))
    assert len(run.setup.network.layers) == 2 * 6 + 1
    with torch.random.fork_rng():
        torch.manual_seed(1)
        values = [float(run.step(x, y)) for _ in range(30)]
    assert sum(values[-5:]) / 5 > values[0] + 0.2
    predictive = run.predict(x, 10)
    assert isinstance(predictive, bali.predictive.mixtures.ClassPredictive)
    assert float(predictive.log_prob(y).mean()) > values[0] + 0.2
    assert torch.backends.mha.get_fastpath_enabled()
