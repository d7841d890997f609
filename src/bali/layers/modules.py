"""Modules of our own: activations, K linear layers side by side, adapters of low rank beside frozen layers.

Activations of stacks of perceptrons have their backward pass written out: autograd takes longer than their small steps.
`tests/layers/test_bending.py` holds each of them against autograd, which also serves any other activation.

With an adapter (Hu et al. 2021, "LoRA: Low-Rank Adaptation of Large Language Models") a linear layer xᵀW becomes xᵀW + xᵀAB
with A (D_in, rank) and B (rank, D_out). A and B are ordinary `nn.Linear` layers, so that each has a posterior; B starts at
zero, and so the network starts as the one it was.
"""

from __future__ import annotations

from collections.abc import Callable, Collection

import torch
from torch import Tensor, nn


class LeakyTanh(nn.Module):
    """tanh(x) + 0.1 x, the paper's activation for classification."""

    def forward(self, x: Tensor) -> Tensor:
        if x.dtype in (torch.float16, torch.bfloat16):
            return torch.tanh(x) + 0.1 * x
        # tanh(x) = 2 σ(2x) − 1, in a quarter of the time; exact to 3e-7 in float32, which narrower types would not bear.
        return torch.add(0.1 * x - 1.0, torch.sigmoid(2.0 * x), alpha=2.0)


ACTIVATIONS: dict[str, type[nn.Module]] = {
    "relu": nn.ReLU,
    "tanh": nn.Tanh,
    "leaky_tanh": LeakyTanh,
    "logistic": nn.Sigmoid,
    "gelu": nn.GELU,
    "identity": nn.Identity,
}


class StackedLinear(nn.Module):
    """K linear layers of one shape: (K, n, D_in), or (n, D_in) for all of them, to (K, n, D_out)."""

    def __init__(self, members: int, in_features: int, out_features: int, bias: bool = True) -> None:
        super().__init__()
        self.members, self.in_features, self.out_features = members, in_features, out_features
        self.weight = nn.Parameter(torch.empty(members, out_features, in_features))
        self.bias = nn.Parameter(torch.empty(members, out_features)) if bias else None
        bound = in_features**-0.5
        with torch.no_grad():
            for parameter in self.parameters():
                parameter.uniform_(-bound, bound)

    def forward(self, x: Tensor) -> Tensor:
        if x.dim() not in (2, 3) or (x.dim() == 3 and len(x) != self.members):
            raise ValueError(f"stacked layers take (n, D) or ({self.members}, n, D) inputs, got shape {tuple(x.shape)}")
        if self.bias is None:
            return x @ self.weight.mT
        return torch.baddbmm(self.bias[:, None, :], x.expand(self.members, *x.shape[-2:]), self.weight.mT)

    def extra_repr(self) -> str:
        return f"members={self.members}, in_features={self.in_features}, out_features={self.out_features}"


class LowRankAdapted(nn.Module):
    """A linear layer, frozen, and an adapter beside it."""

    def __init__(self, base: nn.Linear, rank: int) -> None:
        super().__init__()
        self.base = base.requires_grad_(False)
        self.down = nn.Linear(base.in_features, rank, bias=False).to(base.weight)
        self.up = nn.Linear(rank, base.out_features, bias=False).to(base.weight)
        nn.init.zeros_(self.up.weight)

    def forward(self, x: Tensor) -> Tensor:
        return self.base(x) + self.up(self.down(x))


def lora(module: nn.Module, names: Collection[str], rank: int) -> nn.Module:
    """Freezes the module and puts adapters beside the linear layers of these names; changes the module and returns it.

    Layers that should be trained in full beside them, such as the last one, get `requires_grad_(True)` afterwards.
    """
    names = [names] if isinstance(names, str) else list(names)
    found = dict(module.named_modules())
    if not names or rank < 1:
        raise ValueError(f"lora needs at least one name and a rank of at least 1, got {names} and {rank}")
    for name in names:
        if type(found.get(name)) is not nn.Linear or name == "":
            raise ValueError(
                f"'{name}' is no nn.Linear inside the module, and only those can have adapters; there are "
                f"{[other for other, child in found.items() if type(child) is nn.Linear and other]}"
            )
    module.requires_grad_(False)
    for name in names:
        base = found[name]
        assert isinstance(base, nn.Linear)
        module.set_submodule(name, LowRankAdapted(base, rank))
    return module


# --- activations forward and back -------------------------------------------------------------------------------------


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
