"""A perceptron run over chunk after chunk of rows in the same memory.

`nn.Sequential` takes new memory for the outputs of every part, which for wide layers costs as much as the activation itself.
Only what is nothing but linear modules and activations, none of them watched by hooks, is run this way;
`tests/inference/test_perceptron.py` holds it against the module.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

import torch
from torch import Tensor, nn

from bali.layers.modules import ACTIVATIONS, bent

#: With fewer outputs, a product is faster the other way round.
_FEW_OUTPUTS = 16
#: Modules that do nothing to rows in evaluation.
_IDLE = (nn.Dropout, nn.Identity)


class StandIn(Protocol):
    """Gives a linear module's outputs without it."""

    def into(self, outputs: Tensor) -> None: ...


class Perceptron:
    """Parts of a module, and a buffer for each linear one."""

    def __init__(self, parts: list[nn.Module], n_rows: int) -> None:
        self.parts = parts
        linear = [part for part in parts if isinstance(part, nn.Linear)]
        self._buffers = {part: part.weight.new_empty(n_rows, part.out_features) for part in linear}

    @classmethod
    def of(cls, module: nn.Module, x: object, n_rows: int) -> Perceptron | None:
        """With room for so many rows; None where the module or the rows x are of another kind."""
        if type(module) is not nn.Sequential or not isinstance(x, Tensor) or x.dim() != 2 or _is_watched(module):
            return None
        if torch.is_autocast_enabled(x.device.type):  # which does not reach products into given memory
            return None
        known = {nn.Linear, *ACTIVATIONS.values(), *_IDLE}
        parts = list(module)
        if any(type(part) not in known or _is_watched(part) for part in parts) or type(parts[0]) is not nn.Linear:
            return None
        types = {x.dtype, *(part.weight.dtype for part in parts if isinstance(part, nn.Linear))}
        return cls([part for part in parts if type(part) not in _IDLE], n_rows) if len(types) == 1 else None

    @torch.no_grad()
    def __call__(self, x: Tensor, standing_in: Mapping[nn.Module, StandIn]) -> Tensor:
        """The module's outputs in evaluation, at most so many rows as there is room for. They may be overwritten by the next
        call. Where something stands in for a linear module, that is asked instead."""
        h = x
        for part in self.parts:
            if not isinstance(part, nn.Linear):
                h = bent(part, h)[0]
            elif (stand_in := standing_in.get(part)) is not None:
                h = self._buffers[part][: len(x)]
                stand_in.into(h)
            else:
                h = self._linear(part, h)
        return h

    def _linear(self, part: nn.Linear, h: Tensor) -> Tensor:
        if part.out_features < _FEW_OUTPUTS:
            z = torch.mm(part.weight, h.mT).mT
            return z if part.bias is None else z.add_(part.bias)
        out = self._buffers[part][: len(h)]
        weight = part.weight.mT
        return torch.mm(h, weight, out=out) if part.bias is None else torch.addmm(part.bias, h, weight, out=out)


def _is_watched(module: nn.Module) -> bool:
    return bool(module._forward_hooks or module._forward_pre_hooks)
