"""Passes of stacked perceptrons against autograd, for few and for many outputs, whose products go different ways."""

from __future__ import annotations

import itertools

import pytest
import torch
from torch import Tensor, nn

from bali.inference.stack_update import backward, columns_of, cross, forward
from bali.layers.modules import ACTIVATIONS
from support.networks import randn
from support.oracles import assert_close
from support.tolerances import EXACT

K, N = 3, 11


def means_of(sizes: tuple[int, ...]) -> list[Tensor]:
    return [randn(K, n_in + 1, n_out, seed=place) for place, (n_in, n_out) in enumerate(itertools.pairwise(sizes))]


@pytest.mark.parametrize("activation", ["relu", "gelu"])
@pytest.mark.parametrize("sizes", [(4, 1), (4, 20), (4, 18, 1), (4, 5, 17, 3), (20, 3, 20, 20)])
@pytest.mark.parametrize("rows_of_their_own", [False, True])
def test_both_passes(sizes: tuple[int, ...], activation: str, rows_of_their_own: bool) -> None:
    means, module = means_of(sizes), ACTIVATIONS[activation]()
    x = randn(K, N, sizes[0], seed=8) if rows_of_their_own else randn(N, sizes[0], seed=8)
    at_outputs = randn(K, N, sizes[-1], seed=9)
    h, inputs, outputs = x.expand(K, N, sizes[0]), [], []
    for place, mean in enumerate(means):
        inputs.append(h.detach())
        z = (h @ mean[:, :-1] + mean[:, -1:]).requires_grad_()
        outputs.append(z)
        h = module(z) if place < len(means) - 1 else z
    expected = torch.autograd.grad(outputs[-1], outputs, at_outputs)
    kept = x.clone()
    with torch.no_grad():
        passed = forward(means, module, x)
        assert_close(passed.outputs, outputs[-1], EXACT)
        for found, own in zip(passed.inputs, inputs, strict=True):
            assert_close(found, own, EXACT)
        for found, own in zip(backward(means, passed, at_outputs.mT), expected, strict=True):
            assert_close(found.mT, own, EXACT)
    assert torch.equal(x, kept)


@pytest.mark.parametrize("n_outputs", [1, 6, 16])
def test_products(n_outputs: int) -> None:
    h, g = randn(K, N, 6, seed=1), randn(K, N, n_outputs, seed=2)
    ones = torch.cat([h, torch.ones(K, N, 1, dtype=h.dtype)], -1)
    assert_close(columns_of(h), ones.mT, EXACT)
    assert_close(cross(columns_of(h), g.mT), ones.mT @ g, EXACT)


def test_an_activation_without_a_written_way_back_is_left_to_autograd() -> None:
    means, x = means_of((4, 5, 2)), randn(N, 4, seed=8)
    with torch.no_grad():
        passed = forward(means, nn.Softplus(), x)
        first, _ = backward(means, passed, torch.ones(K, 2, N, dtype=x.dtype))
    z = x @ means[0][:, :-1] + means[0][:, -1:]
    assert_close(first.mT, means[1][:, :-1].sum(-1)[:, None] * z.sigmoid(), EXACT)
