"""Activations with their backward pass written out, for stacks of perceptrons: autograd takes longer than their small steps.

`tests/layers/test_bending.py` holds each of them against autograd, which also serves any other activation.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from bali.layers.modules import LeakyTanh

#: From the gradient at an activation's outputs to the one at its inputs. It may overwrite what it is given.
Back = Callable[[Tensor], Tensor]

_threshold_backward = torch.ops.aten.threshold_backward.grad_input
_tanh_backward = torch.ops.aten.tanh_backward.grad_input
_sigmoid_backward = torch.ops.aten.sigmoid_backward.grad_input
_gelu_backward = torch.ops.aten.gelu_backward.grad_input


def bent(activation: nn.Module, z: Tensor) -> tuple[Tensor, Back]:
    """activation(z), and the way back. It may overwrite z."""
    kind = type(activation)
    if kind is nn.ReLU:
        return (h := z.relu_()), lambda g: _threshold_backward(g, h, 0, grad_input=g)
    if kind is nn.Tanh:
        return (h := z.tanh_()), lambda g: _tanh_backward(g, h, grad_input=g)
    if kind is nn.Sigmoid:
        return (h := z.sigmoid_()), lambda g: _sigmoid_backward(g, h, grad_input=g)
    if kind is nn.GELU and activation.approximate == "none":
        return activation(z), lambda g: _gelu_backward(g, z, grad_input=g)
    if kind is LeakyTanh:
        tanh = z.tanh()
        return torch.add(tanh, z, alpha=0.1), lambda g: g.mul_(1.1 - tanh.square())
    if kind is nn.Identity:
        return z, lambda g: g
    return _by_autograd(activation, z)


def _by_autograd(activation: nn.Module, z: Tensor) -> tuple[Tensor, Back]:
    with torch.enable_grad():
        z = z.detach().requires_grad_()
        h = activation(z)

    def back(gradient: Tensor) -> Tensor:
        (found,) = torch.autograd.grad(h, z, gradient)
        return found

    return h.detach(), back
