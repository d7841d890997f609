"""Which modules have a posterior, each seen as rows times a weight matrix, and many networks of one shape as one.

`KINDS` lists the kinds of modules; a new one is a class with `layer.Layer`'s interface and a line there (docs/layers.md).
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Collection, Sequence
from typing import Any

import torch
from torch import nn

from bali.layers.attention import Attention
from bali.layers.convolution import ConvolutionLayer
from bali.layers.embedding import EmbeddingLayer
from bali.layers.layer import Composite, Layer, UnsupportedLayerError
from bali.layers.linear import LinearLayer
from bali.layers.modules import StackedLinear
from bali.layers.recurrence import Cell, Recurrence

#: Every kind of module that can have a posterior, and how it becomes rows times a weight matrix.
KINDS: dict[type[nn.Module], Callable[[str, Any], Layer]] = {
    nn.Linear: LinearLayer,
    StackedLinear: LinearLayer,
    nn.Conv1d: ConvolutionLayer,
    nn.Conv2d: ConvolutionLayer,
    nn.Conv3d: ConvolutionLayer,
    nn.Embedding: EmbeddingLayer,
}

#: Every kind of module that is several layers in one.
COMPOSITES: dict[type[nn.Module], Callable[[str, Any], Composite]] = {
    nn.MultiheadAttention: Attention,
    nn.RNN: Recurrence,
    nn.LSTM: Recurrence,
    nn.GRU: Recurrence,
    nn.RNNCell: Cell,
    nn.LSTMCell: Cell,
    nn.GRUCell: Cell,
}


def find_layers(
    module: nn.Module,
    exclude: Collection[str] = (),
    *,
    has_optimizer: bool = False,
    only: Collection[str] | None = None,
) -> dict[str, Layer]:
    """Every layer of a known kind with trainable weights, by name, in the order of `named_modules`.

    Modules named in `exclude`, and all inside them, are passed over, and so are those outside of `only`. Raises
    `UnsupportedLayerError` for trainable parameters that are tied or partly frozen, and, where no optimizer takes care of
    them, for those of other modules.
    """
    layers: dict[str, Layer] = {}
    composites: dict[str, Composite] = {}
    for name, child in module.named_modules():
        if is_inside(name, exclude) or (only is not None and not is_inside(name, only)):
            continue
        shown = name or "(the module itself)"
        composite = next((kind for kind in COMPOSITES if isinstance(child, kind)), None)
        covered: set[nn.Parameter] = set()
        if composite is not None and any(p.requires_grad for p in child.parameters()):
            _check_forward(child, composite, shown)
            composites[name] = COMPOSITES[composite](name, child)
            layers |= composites[name].layers
            covered = {p for layer in composites[name].layers.values() for p in layer.parameters()}
        trainable = [(n, p) for n, p in child.named_parameters(recurse=False) if p.requires_grad and p not in covered]
        if not trainable:
            continue
        kind = next((kind for kind in KINDS if isinstance(child, kind)), None)
        if kind is None:
            if has_optimizer:
                continue
            raise UnsupportedLayerError(
                f"module '{shown}' ({type(child).__name__}) has trainable parameters {[n for n, _ in trainable]} but is "
                "no linear layer, convolution, embedding, attention or recurrent layer, or they are not part of its weight "
                "matrices. Give an optimizer to train them without a posterior, or call requires_grad_(False) on them to "
                "keep them as they are."
            )
        if not is_plain(child, kind):
            raise UnsupportedLayerError(
                f"layer '{shown}' ({type(child).__name__}) computes its weight from other parameters or has a forward of "
                "its own. Remove the parametrisation, freeze it with requires_grad_(False), or name it in `exclude` to "
                "train it by an optimizer."
            )
        if len(trainable) != len(list(child.parameters(recurse=False))):
            raise UnsupportedLayerError(
                f"layer '{shown}' is partly frozen: freeze its weight and bias both, or neither, or name it in `exclude`."
            )
        layers[name] = KINDS[kind](name, child)
        layers[name].part_of = composites.get(name.rpartition(".")[0])
    _check_ties(module, layers.values())
    if not layers:
        where = "the module has" if only is None else f"modules {sorted(only)}, named in `only`, have"
        raise UnsupportedLayerError(f"{where} no nn.Linear layer or other layer of a known kind with trainable weights")
    if len({layer.members for layer in layers.values()}) > 1:
        raise UnsupportedLayerError("stacked and single layers are mixed, or their numbers of members differ")
    return layers


def is_inside(name: str, modules: Collection[str]) -> bool:
    """The name is one of these or of something inside one of them."""
    return any(name == outer or name.startswith(f"{outer}.") for outer in modules)


def _check_ties(module: nn.Module, layers: Collection[Layer]) -> None:
    # named_parameters(remove_duplicate=False) shows a shared parameter under each of its names.
    names: dict[nn.Parameter, list[str]] = {}
    for name, parameter in module.named_parameters(remove_duplicate=False):
        if parameter.requires_grad:
            names.setdefault(parameter, []).append(name)
    covered = {parameter for layer in layers for parameter in layer.parameters()}
    for parameter, (first, *others) in names.items():
        for other in others:
            if parameter in covered:
                raise UnsupportedLayerError(
                    f"'{other}' and '{first}' are one tied parameter. A layerwise posterior needs separate weights: "
                    "untie them, freeze both, or name both layers in `exclude`."
                )


def is_plain(child: nn.Module, kind: type[nn.Module]) -> bool:
    """Its own parameters are the weight and bias themselves (no weight norm, no pruning), used as the kind uses them."""
    names = {name for name, _ in child.named_parameters(recurse=False)}
    expected = {"weight"} if getattr(child, "bias", None) is None else {"weight", "bias"}
    return names == expected and not _has_own_forward(child, kind)


def _has_own_forward(child: nn.Module, kind: type[nn.Module]) -> bool:
    subclasses = type(child).__mro__[: type(child).__mro__.index(kind)]
    return "forward" in vars(child) or any("forward" in name for subclass in subclasses for name in vars(subclass))


def _check_forward(child: nn.Module, kind: type[nn.Module], shown: str) -> None:
    if _has_own_forward(child, kind):
        raise UnsupportedLayerError(
            f"module '{shown}' ({type(child).__name__}) has a forward of its own, not that of {kind.__name__}. Freeze it "
            "with requires_grad_(False), or name it in `exclude` to train it by an optimizer."
        )


# --- networks of one shape side by side: members of an ensemble, seeds, folds -----------------------------------------


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
