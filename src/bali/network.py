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
    """One call of a layer in a forward pass."""

    x: Tensor
    z: Tensor
    passed_on: Tensor  # z, or the copy of it that the module went on with
    versions: tuple[int, int, int]

    @classmethod
    def of(cls, x: Tensor, z: Tensor, passed_on: Tensor) -> Call:
        return cls(x, z, passed_on, (_version(x), _version(z), _version(passed_on)))

    @property
    def changed_in_place(self) -> bool:
        return self.versions[:2] != (_version(self.x), _version(self.z))

    def is_the(self, output: Tensor) -> bool:
        """The module returned these outputs, perhaps in another shape, and not merely equal numbers."""
        same = output.data_ptr() == self.passed_on.data_ptr() and output.numel() == self.passed_on.numel()
        ordered = output.is_contiguous() and self.passed_on.is_contiguous()
        return same and ordered and self.versions[2] == _version(self.passed_on)


def _version(tensor: Tensor) -> int:
    """How often the tensor was written to; tensors made in inference mode do not count."""
    return 0 if tensor.is_inference() else tensor._version


class Network:
    def __init__(self, module: nn.Module) -> None:
        self.module = module
        self.layers: dict[str, LinearLayer] = find_layers(module)
        self.members = next(iter(self.layers.values())).members
        # An in-place activation would overwrite the recorded outputs, so it gets a copy of them.
        self._copies_outputs = any(getattr(m, "inplace", False) for m in module.modules())

    def forward(self, x: Tensor, perturb: Perturbation | None = None) -> tuple[Tensor, dict[str, list[Call]]]:
        """The module's output, with the last dimension that a final squeeze(-1) took, and the calls of each layer."""
        calls: dict[str, list[Call]] = {name: [] for name in self.layers}
        handles = [
            layer.module.register_forward_hook(self._recorder(name, calls[name], perturb), with_kwargs=True)
            for name, layer in self.layers.items()
        ]
        try:
            output = self.module(x)
        finally:
            for handle in handles:
                handle.remove()
        self._check(output, calls)
        is_squeezed = output.dim() < (2 if self.members is None else 3)
        return output.unsqueeze(-1) if is_squeezed else output, calls

    def _recorder(
        self, name: str, calls: list[Call], perturb: Perturbation | None
    ) -> Callable[[nn.Module, tuple[Tensor, ...], dict[str, Tensor], Tensor], Tensor]:
        def record(_module: nn.Module, args: tuple[Tensor, ...], kwargs: dict[str, Tensor], z: Tensor) -> Tensor:
            x = (args[0] if args else next(iter(kwargs.values()))).detach()
            if perturb is not None:
                z = perturb(name, x, z)
            passed_on = z.clone() if self._copies_outputs else z
            calls.append(Call.of(x, z, passed_on))
            return passed_on

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
            if any(call.changed_in_place for call in layer_calls):
                raise UnsupportedLayerError(
                    f"the input or output of layer '{name}' was changed in place after its use; use the out-of-place "
                    "form of what follows it"
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
