"""Many networks of one shape as one: members of an ensemble, seeds, folds."""

from __future__ import annotations

import copy
from collections.abc import Sequence

import torch
from torch import nn

from bali.layers.kinds import is_plain
from bali.layers.layer import UnsupportedLayerError
from bali.layers.modules import BentUnlessLinear, StackedLinear


def stack(modules: Sequence[nn.Module]) -> nn.Module:
    """K networks of one shape as one module of `StackedLinear` layers, weights copied."""
    if not modules:
        raise ValueError("stack needs at least one module")
    stacked = copy.deepcopy(modules[0])
    named = [dict(m.named_modules()) for m in modules]
    for name, child in list(stacked.named_modules()):
        if any(type(m.get(name)) is not type(child) or len(m) != len(named[0]) for m in named):
            raise ValueError(f"networks to stack differ in module '{name}'")
        if isinstance(child, nn.Linear) and not is_plain(child, nn.Linear):
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
        elif isinstance(child, BentUnlessLinear):
            child.linear = tuple(child.linear[k] for k in index)
    return taken
