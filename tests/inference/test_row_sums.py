"""Sums over the rows of a batch: from weight gradients and from samples of rows, against all rows written out."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from bali.conjugate.rows import Tokens
from bali.inference.joint_pass import JointPass, Link, even_sample, joint_pass
from bali.inference.network import Network
from bali.layers.layer import Layer
from bali.predictive.likelihoods import Categorical
from support.networks import randn, seeded
from support.sequences import Sequences
from support.tolerances import EXACT

N = 12


def image_network() -> nn.Module:
    parts = [nn.Conv2d(2, 4, 3, padding=1, groups=2), nn.Tanh(), nn.Conv2d(4, 3, 2, stride=2), nn.Tanh(), nn.Flatten()]
    return nn.Sequential(*parts, nn.Linear(27, 3))


def gru_network() -> nn.Module:
    return nn.Sequential(Sequences(nn.GRU(2, 3, batch_first=True)), nn.Flatten(), nn.Linear(9, 3))


def attention_network() -> nn.Module:
    return nn.Sequential(Sequences(nn.MultiheadAttention(4, 2, batch_first=True)), nn.Flatten(), nn.Linear(12, 3))


def token_network() -> nn.Module:
    return nn.Sequential(nn.Embedding(5, 4), nn.Linear(4, 4, bias=False), nn.Tanh(), nn.Flatten(), nn.Linear(8, 3))


CASES: dict[str, tuple[Callable[[], nn.Module], Callable[[], Tensor]]] = {
    "images": (image_network, lambda: randn(N, 2, 6, 6, seed=1)),
    "GRU": (gru_network, lambda: randn(N, 3, 2, seed=1)),
    "attention": (attention_network, lambda: randn(N, 3, 4, seed=1)),
    "tokens": (token_network, lambda: torch.randint(5, (N, 2), generator=seeded(1))),
}
each_network = pytest.mark.parametrize("case", CASES)


def made(case: str, max_block: int = 2048) -> tuple[Network, Tensor, Tensor]:
    make, inputs = CASES[case]
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return Network(make().double(), max_block=max_block), inputs(), torch.randint(3, (N,), generator=seeded(2))


def passed(case: str, sample: int | None, max_block: int = 2048) -> JointPass:
    network, x, y = made(case, max_block)
    return joint_pass(network, Categorical(), Link(), x, y, None, sample)


def written_out(layer: Layer, x: Tensor) -> Tensor:
    rows = layer.input_rows(x)
    rows = nn.functional.one_hot(rows.index, rows.n_tokens).double() if isinstance(rows, Tokens) else rows
    return torch.cat([rows, torch.ones(*rows.shape[:-1], 1).double()], -1) if layer.has_bias else rows


@each_network
@pytest.mark.parametrize("max_block", [2048, 5])
def test_sums_are_those_of_all_rows_written_out(case: str, max_block: int) -> None:
    network, x, y = made(case, max_block)
    output, calls = network.forward(x)
    _, gradient = Categorical().evaluate(output.detach(), y)
    gradients, _ = network.backward(output, gradient, calls, None)
    seen = passed(case, 0, max_block)
    for name, layer in network.layers.items():
        rows = torch.cat([written_out(layer, call.x) for call in calls[name]], -2)
        g = torch.cat([layer.output_rows(own) for own in gradients[name]], -2)
        sums = seen.sums[name]
        assert sums.xx is not None
        assert sums.yy is not None
        assert sums.n == g.shape[-2]
        torch.testing.assert_close(sums.xy * N, rows.mT @ g, rtol=EXACT, atol=EXACT)
        torch.testing.assert_close(sums.xx.dense(), rows.mT @ rows, rtol=EXACT, atol=EXACT)
        torch.testing.assert_close(sums.yy, g.mT @ g, rtol=EXACT, atol=EXACT)


@each_network
@pytest.mark.parametrize("max_block", [2048, 5])
def test_a_pass_without_statistics_has_the_same_gradients(case: str, max_block: int) -> None:
    """It runs the module as it is, which for attention and recurrence is other code than the one that is watched."""
    plain, whole = passed(case, None, max_block), passed(case, 0, max_block)
    assert plain.log_likelihood == pytest.approx(whole.log_likelihood, rel=EXACT)
    for name, sums in plain.sums.items():
        assert sums.xx is None
        assert sums.yy is None
        torch.testing.assert_close(sums.xy, whole.sums[name].xy, rtol=EXACT, atol=EXACT)


@each_network
@pytest.mark.parametrize("max_block", [2048, 5])
def test_chosen_rows_are_those_of_all_rows(case: str, max_block: int) -> None:
    network, x, _ = made(case, max_block)
    _, calls = network.forward(x)
    for name, layer in network.layers.items():
        call = calls[name][0]
        index = even_sample(layer.n_rows(call.z), 7, 3, call.z.device)
        assert torch.equal(layer.some_output_rows(call.z, index), layer.output_rows(call.z)[..., index, :])
        if not layer.has_tokens:
            assert torch.equal(
                layer.some_input_rows(call.x, index), written_out(layer, call.x)[..., index, : layer.in_features]
            )


@each_network
def test_samples_of_rows_have_the_sums_of_all_in_the_mean(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = passed(case, 0)
    monkeypatch.setattr("bali.inference.joint_pass.enough_rows", lambda n_inputs: 7)
    samples = [passed(case, start) for start in range(300)]
    for name, sums in whole.sums.items():
        for part in ("xx", "yy"):
            found = [getattr(s.sums[name], part) for s in samples]
            dense = torch.stack([f if isinstance(f, Tensor) else f.dense() for f in found])
            expected = getattr(sums, part)
            expected = expected if isinstance(expected, Tensor) else expected.dense()
            size = expected.diagonal(dim1=-2, dim2=-1).max()
            assert float((dense.mean(0) - expected).abs().max()) < 0.05 * float(size)
        assert samples[0].sums[name].n == sums.n


def test_a_sample_spreads_evenly_and_the_next_one_is_another() -> None:
    first, second = (even_sample(1000, 100, start, torch.device("cpu")) for start in (0, 1))
    assert first.min() >= 0
    assert first.max() < 1000
    counts = torch.bincount(first // 100, minlength=10)
    assert counts.min() >= 8
    assert counts.max() <= 12
    assert not torch.equal(first, second)
