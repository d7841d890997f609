"""Stacked perceptrons and the rules for their sizes."""

import pytest
import torch
from torch import nn

from bali.estimators.mlp import draw_initial_weights, stacked_mlp, unit_variances
from bali.layers.kinds import take_stacked
from bali.layers.linear import StackedLinear
from bali.layers.modules import ACTIVATIONS


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_each_member_is_a_perceptron_of_its_own(activation: str) -> None:
    module = stacked_mlp(3, [2, 5, 4, 1], activation)
    draw_initial_weights(module, unit_variances([2, 5, 4, 1]), torch.Generator().manual_seed(0))
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


def test_linear_members_have_no_activation_also_among_some_that_are_taken() -> None:
    module = stacked_mlp(3, [2, 5, 1], "relu", [False, True, False])
    draw_initial_weights(module, unit_variances([2, 5, 1]), torch.Generator().manual_seed(0))
    x = torch.randn(7, 2)
    first, last = (layer for layer in module if isinstance(layer, StackedLinear))
    bent, linear = (last(activation(first(x))) for activation in (torch.relu, nn.Identity()))
    torch.testing.assert_close(module(x), torch.stack([bent[0], linear[1], bent[2]]))
    torch.testing.assert_close(take_stacked(module, [1, 2])(x), torch.stack([linear[1], bent[2]]))


def test_variances_follow_the_scaling_of_the_paper() -> None:
    variances = unit_variances([4, 50, 20, 1])
    assert variances == pytest.approx({"0": 2.0, "2": 1 / 51, "4": 1 / 21})  # four columns and a bias spread like nine
    assert unit_variances([783, 50, 1])["0"] == pytest.approx(10 / 784)
    assert unit_variances([783, 50, 1], first=1.0)["0"] == 1.0


def test_weights_are_drawn_with_these_variances() -> None:
    module = stacked_mlp(50, [9, 40, 1], "relu")
    draw_initial_weights(module, {"0": 1.0, "2": 0.25}, torch.Generator().manual_seed(0))
    for name, variance in (("0", 1.0), ("2", 0.25)):
        weights = torch.cat([p.detach().flatten() for p in module.get_submodule(name).parameters()])
        error = variance * (2 / len(weights)) ** 0.5
        assert abs(float(weights.var()) - variance) < 5 * error


def test_each_member_can_start_at_its_own_scale() -> None:
    module, plain = (stacked_mlp(2, [9, 40, 1], "relu") for _ in range(2))
    draw_initial_weights(module, {"0": 1.0, "2": 0.25}, torch.Generator().manual_seed(0), torch.tensor([1.0, 9.0]))
    draw_initial_weights(plain, {"0": 1.0, "2": 0.25}, torch.Generator().manual_seed(0))
    for scaled, unit in zip(module.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(scaled[0], unit[0])
        torch.testing.assert_close(scaled[1], 3.0 * unit[1])
