"""Activations whose backward pass is written out, against autograd."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from bali.layers.modules import ACTIVATIONS, bent
from support.networks import randn
from support.oracles import assert_close
from support.tolerances import EXACT

MODULES = {name: make() for name, make in ACTIVATIONS.items()} | {"softplus": nn.Softplus(), "bent gelu": nn.GELU("tanh")}


@pytest.mark.parametrize("name", MODULES)
def test_values_and_gradients_are_those_of_autograd(name: str) -> None:
    z, gradient = randn(3, 7, 5, seed=1), randn(3, 7, 5, seed=2)
    plain = z.clone().requires_grad_()
    expected = MODULES[name](plain)
    (expected_gradient,) = torch.autograd.grad(expected, plain, gradient)
    with torch.no_grad():
        found, back = bent(MODULES[name], z.clone())
        assert_close(found, expected, EXACT)
        assert_close(back(gradient.clone()), expected_gradient, EXACT)
