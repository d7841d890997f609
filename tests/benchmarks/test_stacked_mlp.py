"""Stacked perceptrons and the rules for their sizes."""

import pytest
import torch
from torch import nn

from bali.layers.linear import StackedLinear
from bali.layers.modules import ACTIVATIONS
from bali_benchmarks.initial_weights import draw_initial_weights, unit_variances
from bali_benchmarks.stacked_mlp import stacked_mlp


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_each_member_is_a_perceptron_of_its_own(activation: str) -> None:
    module = stacked_mlp(3, [2, 5, 4, 1], activation)
    draw_initial_weights(module, unit_variances([2, 5, 4, 1], first=1.0), torch.Generator().manual_seed(0))
    x = torch.randn(7, 2)
    single = []
    for k in range(3):
        h = x
        for layer in module:
            if isinstance(layer, StackedLinear):
                assert layer.bias is not None
                h = nn.functional.linear(h, layer.weight[k], layer.bias[k])
            else:
                h = layer(h)
        single.append(h)
    torch.testing.assert_close(module(x), torch.stack(single))


def test_variances_follow_the_scaling_of_the_paper() -> None:
    assert unit_variances([4, 50, 20, 1], first=2.0) == pytest.approx({"0": 2.0, "2": 1 / 51, "4": 1 / 21})


def test_weights_are_drawn_with_these_variances() -> None:
    module = stacked_mlp(50, [9, 40, 1], "relu")
    draw_initial_weights(module, {"0": 1.0, "2": 0.25}, torch.Generator().manual_seed(0))
    for name, variance in (("0", 1.0), ("2", 0.25)):
        weights = torch.cat([p.detach().flatten() for p in module.get_submodule(name).parameters()])
        error = variance * (2 / len(weights)) ** 0.5
        assert abs(float(weights.var()) - variance) < 5 * error
