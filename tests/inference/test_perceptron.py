"""Perceptrons run in the same memory, against the module itself."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from bali.inference.perceptron import Perceptron
from support.networks import randn
from support.oracles import assert_close
from support.tolerances import EXACT

NETWORKS = {
    "relu": lambda: nn.Sequential(nn.Linear(4, 20), nn.ReLU(), nn.Linear(20, 17, bias=False), nn.ReLU(), nn.Linear(17, 3)),
    "gelu": lambda: nn.Sequential(nn.Linear(4, 20), nn.GELU(), nn.Dropout(0.5), nn.Linear(20, 2, bias=False)),
    "wide": lambda: nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 16)),
    "linear": lambda: nn.Sequential(nn.Linear(4, 3)),
}


def doubled(name: str) -> nn.Sequential:
    torch.manual_seed(0)
    return NETWORKS[name]().double().eval()


@pytest.mark.parametrize("name", NETWORKS)
def test_it_answers_as_the_module_does(name: str) -> None:
    module, x = doubled(name), randn(11, 4, seed=1)
    kept, perceptron = x.clone(), Perceptron.of(module, x, 5)
    assert perceptron is not None
    for start in range(0, 11, 5):
        assert_close(perceptron(x[start : start + 5], {}), module(x[start : start + 5]), EXACT)
    assert torch.equal(x, kept)


def test_something_may_stand_in_for_a_linear_module() -> None:
    module, x = doubled("relu"), randn(5, 4, seed=1)
    perceptron = Perceptron.of(module, x, 5)
    assert perceptron is not None

    class Twice:
        def into(self, outputs: Tensor) -> None:
            outputs.copy_(2.0 * module[0](x))

    assert_close(perceptron(x, {module[0]: Twice()}), module[1:](2.0 * module[0](x)), EXACT)


def test_other_modules_and_rows_are_left_alone() -> None:
    x = randn(5, 4, seed=1)
    assert Perceptron.of(nn.Linear(4, 2).double(), x, 5) is None
    assert Perceptron.of(nn.Sequential(nn.Linear(4, 2), nn.LayerNorm(2)).double(), x, 5) is None
    assert Perceptron.of(nn.Sequential(nn.Tanh(), nn.Linear(4, 2)).double(), x, 5) is None  # which would overwrite x
    assert Perceptron.of(doubled("relu"), x[None], 5) is None
    assert Perceptron.of(doubled("relu"), x.float(), 5) is None
    watched = doubled("relu")
    watched[1].register_forward_hook(lambda _module, _args, output: 2.0 * output)
    assert Perceptron.of(watched, x, 5) is None
