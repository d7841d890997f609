"""Which modules have a posterior, each seen as rows times a weight matrix.

A layer's weight matrix W is (D_in + 1, D_out) with the bias row last (D_in rows without a bias), and its output is
(x, 1) W for every row x. `StackedLinear` holds K such layers side by side: a leading dimension of K everywhere.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence

import torch
from torch import Tensor, nn


class UnsupportedLayerError(TypeError):
    """A module has trainable parameters that BALI cannot treat; the message names it and a remedy."""


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
        if x.dim() == 3:
            return torch.baddbmm(self.bias[:, None, :], x, self.weight.mT)
        return x @ self.weight.mT + self.bias[:, None, :]

    def extra_repr(self) -> str:
        return f"members={self.members}, in_features={self.in_features}, out_features={self.out_features}"


class LinearLayer:
    """A linear module as a weight matrix. `members` is K for stacked layers, None otherwise."""

    def __init__(self, name: str, module: nn.Linear | StackedLinear) -> None:
        self.name, self.module = name, module
        self.members = module.members if isinstance(module, StackedLinear) else None
        self.has_bias = module.bias is not None
        self.in_features, self.out_features = module.in_features, module.out_features

    @property
    def n_inputs(self) -> int:
        """Rows of the weight matrix, the bias included."""
        return self.in_features + self.has_bias

    def rows(self, x: Tensor) -> Tensor:
        """Inputs or outputs as rows: middle dimensions are folded into the rows, members stay in front."""
        if self.members is not None:
            return x  # (K, n, D), or (n, D) shared by the members
        return x if x.dim() == 2 else x.reshape(-1, x.shape[-1])

    def weights(self) -> Tensor:
        """The module's own weights as a matrix, copied."""
        weight = self.module.weight.detach().mT
        if self.module.bias is None:
            return weight.clone()
        return torch.cat([weight, self.module.bias.detach().unsqueeze(-2)], dim=-2)

    @torch.no_grad()
    def assign(self, weights: Tensor) -> None:
        """Write a weight matrix into the module."""
        d = self.in_features
        self.module.weight.copy_(weights[..., :d, :].mT)
        if self.module.bias is not None:
            self.module.bias.copy_(weights[..., d, :])


def find_layers(module: nn.Module) -> dict[str, LinearLayer]:
    """Every linear layer with trainable weights, by name, in the order of `named_modules`.

    Raises `UnsupportedLayerError` for trainable parameters that are tied, partly frozen or of another kind of module.
    """
    layers: dict[str, LinearLayer] = {}
    owners: dict[int, str] = {}
    for name, child in module.named_modules():
        trainable = [(n, p) for n, p in child.named_parameters(recurse=False) if p.requires_grad]
        if not trainable:
            continue
        shown = name or "(the module itself)"
        if not isinstance(child, nn.Linear | StackedLinear):
            raise UnsupportedLayerError(
                f"module '{shown}' ({type(child).__name__}) has trainable parameters "
                f"{[n for n, _ in trainable]} but is no linear layer. Call requires_grad_(False) on it to keep "
                "it as it is, or replace it by nn.Linear layers."
            )
        if not _is_plain(child):
            raise UnsupportedLayerError(
                f"layer '{shown}' ({type(child).__name__}) computes its weight from other parameters or has a forward of "
                "its own. Remove the parametrisation, or freeze it with requires_grad_(False)."
            )
        if len(trainable) != len(list(child.parameters(recurse=False))):
            raise UnsupportedLayerError(f"layer '{shown}' is partly frozen: freeze its weight and bias both, or neither.")
        layers[name] = LinearLayer(name, child)
    # named_parameters(remove_duplicate=False) shows a shared parameter under each of its names.
    for full_name, parameter in module.named_parameters(remove_duplicate=False):
        if parameter.requires_grad and owners.setdefault(id(parameter), full_name) != full_name:
            raise UnsupportedLayerError(
                f"'{full_name}' and '{owners[id(parameter)]}' are one tied parameter. "
                "A layerwise posterior needs separate weights: untie them, or freeze both."
            )
    if not layers:
        raise UnsupportedLayerError("the module has no nn.Linear layer with trainable weights")
    if len({layer.members for layer in layers.values()}) > 1:
        raise UnsupportedLayerError("stacked and single linear layers are mixed, or their numbers of members differ")
    return layers


def _is_plain(linear: nn.Linear | StackedLinear) -> bool:
    """Its own parameters are the weight and bias themselves (no weight norm, no pruning), used as xWᵀ + b."""
    names = {name for name, _ in linear.named_parameters(recurse=False)}
    expected = {"weight"} if linear.bias is None else {"weight", "bias"}
    return names == expected and type(linear).forward in (nn.Linear.forward, StackedLinear.forward)


def stack(modules: Sequence[nn.Module]) -> nn.Module:
    """K networks of one shape as one module of `StackedLinear` layers, weights copied."""
    if not modules:
        raise ValueError("stack needs at least one module")
    stacked = copy.deepcopy(modules[0])
    named = [dict(m.named_modules()) for m in modules]
    for name, child in list(stacked.named_modules()):
        if any(type(m.get(name)) is not type(child) or len(m) != len(named[0]) for m in named):
            raise ValueError(f"networks to stack differ in module '{name}'")
        if isinstance(child, nn.Linear) and not _is_plain(child):
            raise UnsupportedLayerError(f"layer '{name}' ({type(child).__name__}) is no plain linear layer; cannot stack it")
        if isinstance(child, nn.Linear):
            new = _stack_linear([m.get(name) for m in named], name)
            if name == "":
                return new
            stacked.set_submodule(name, new)
        elif list(child.parameters(recurse=False)):
            raise UnsupportedLayerError(f"module '{name}' ({type(child).__name__}) has parameters and cannot be stacked")
    return stacked


def _stack_linear(linears: Sequence[nn.Module | None], name: str) -> StackedLinear:
    first = linears[0]
    assert isinstance(first, nn.Linear)
    shape, bias = (first.in_features, first.out_features), first.bias is not None
    new = StackedLinear(len(linears), *shape, bias=bias).to(first.weight)
    with torch.no_grad():
        for k, linear in enumerate(linears):
            if not isinstance(linear, nn.Linear) or (linear.in_features, linear.out_features) != shape:
                raise ValueError(f"networks to stack differ in layer '{name}'")
            if (linear.bias is not None) != bias:
                raise ValueError(f"networks to stack differ in the bias of layer '{name}'")
            new.weight[k] = linear.weight
            if linear.bias is not None and new.bias is not None:
                new.bias[k] = linear.bias
    new.requires_grad_(first.weight.requires_grad)
    return new


def take_stacked(module: nn.Module, index: Sequence[int]) -> nn.Module:
    """A copy of a stacked module with some of its members."""
    taken = copy.deepcopy(module)
    for child in taken.modules():
        if isinstance(child, StackedLinear):
            child.members = len(index)
            for name, parameter in list(child.named_parameters(recurse=False)):
                chosen = parameter.detach()[list(index)].clone()
                setattr(child, name, nn.Parameter(chosen, requires_grad=parameter.requires_grad))
    return taken
