"""A module run with its layers' inputs and outputs on record, and its weights put back whatever happens."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from bali.layers import LinearLayer, UnsupportedLayerError, find_layers

#: Called with a layer's name, its inputs and its outputs; returns the outputs to use instead.
Perturbation = Callable[[str, Tensor, Tensor], Tensor]


@dataclass
class Call:
    """One call of a layer in a forward pass: the inputs, the outputs and the outputs' version counter."""

    x: Tensor
    z: Tensor
    version: int


class Network:
    def __init__(self, module: nn.Module) -> None:
        self.module = module
        self.layers: dict[str, LinearLayer] = find_layers(module)
        self.members = next(iter(self.layers.values())).members
        # An in-place activation would overwrite the recorded outputs, so it gets a copy of them.
        self._copies_outputs = any(getattr(m, "inplace", False) for m in module.modules())

    def forward(self, x: Tensor, perturb: Perturbation | None = None) -> tuple[Tensor, dict[str, list[Call]]]:
        """The module's output and the calls of each layer."""
        calls: dict[str, list[Call]] = {name: [] for name in self.layers}
        handles = [
            layer.module.register_forward_hook(self._recorder(name, calls[name], perturb))
            for name, layer in self.layers.items()
        ]
        try:
            output = self.module(x)
        finally:
            for handle in handles:
                handle.remove()
        self._check(output, calls)
        return output, calls

    def _recorder(
        self, name: str, calls: list[Call], perturb: Perturbation | None
    ) -> Callable[[nn.Module, tuple[Tensor, ...], Tensor], Tensor | None]:
        def record(_module: nn.Module, args: tuple[Tensor, ...], z: Tensor) -> Tensor | None:
            if perturb is not None:
                z = perturb(name, args[0].detach(), z)
            calls.append(Call(args[0].detach(), z, z._version))
            if self._copies_outputs:
                return z.clone()
            return z if perturb is not None else None

        return record

    def _check(self, output: object, calls: Mapping[str, list[Call]]) -> None:
        if not isinstance(output, Tensor):
            raise TypeError(f"the module must return one tensor, got {type(output).__name__}")
        for name, layer_calls in calls.items():
            if not layer_calls:
                raise UnsupportedLayerError(
                    f"layer '{name}' was not called in the forward pass. Freeze it with requires_grad_(False), or call "
                    "it as a module (not through its weight) so that its inputs can be seen."
                )
            if any(call.z._version != call.version for call in layer_calls):
                raise UnsupportedLayerError(
                    f"the output of layer '{name}' was changed in place; use the out-of-place form of what follows it"
                )

    def weights(self) -> dict[str, Tensor]:
        return {name: layer.weights() for name, layer in self.layers.items()}

    def assign(self, weights: Mapping[str, Tensor]) -> None:
        for name, matrix in weights.items():
            self.layers[name].assign(matrix)

    @contextmanager
    def evaluating(self) -> Iterator[None]:
        """Evaluation mode without gradients; on leaving, weights and every module's mode are as they were."""
        modes = {m: m.training for m in self.module.modules()}
        kept = self.weights()
        try:
            self.module.eval()
            with torch.no_grad():
                yield
        finally:
            self.assign(kept)
            for m, mode in modes.items():
                m.training = mode
