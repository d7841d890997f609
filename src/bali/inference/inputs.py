"""What a module's forward takes: a tensor, or a tuple or dict of tensors whose first dimension are the examples."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor, nn

Inputs = Tensor | tuple[Tensor, ...] | Mapping[str, Tensor]


def check_tensor(value: object, name: str) -> None:
    if not isinstance(value, Tensor):
        raise TypeError(f"{name} must be a tensor, not {type(value).__name__}; torch.as_tensor makes one of an array")


def each(x: Inputs, change: Callable[[Tensor], Tensor]) -> Inputs:
    """The same with every tensor changed."""
    if isinstance(x, Tensor):
        return change(x)
    if isinstance(x, Mapping):
        return {name: change(part) for name, part in x.items()}
    return tuple(change(part) for part in x)


def tensors(x: Inputs) -> list[Tensor]:
    return [x] if isinstance(x, Tensor) else list(x.values() if isinstance(x, Mapping) else x)


def n_rows(x: Inputs) -> int:
    """The number of examples, which all tensors must agree on."""
    parts = tensors(x)
    if any(part.dim() == 0 for part in parts):
        raise ValueError("x is a single number or has one among its tensors; their first dimension are the examples")
    sizes = {len(part) for part in parts}
    if len(sizes) != 1:
        raise ValueError(f"the tensors of x have different numbers of rows: {sorted(sizes)}")
    return sizes.pop()


def rows(x: Inputs, index: Tensor | slice) -> Inputs:
    return each(x, lambda part: part[index])


def on(x: Inputs, device: torch.device, dtype: torch.dtype) -> Inputs:
    """On a device, with numbers that are no whole ones in this type: masks and tokens stay what they are."""
    return each(x, lambda part: part.to(device, dtype) if part.is_floating_point() else part.to(device))


def call(module: nn.Module, x: Inputs) -> object:
    """The module's output."""
    if isinstance(x, Tensor):
        return module(x)
    return module(**x) if isinstance(x, Mapping) else module(*x)
