"""A module run with its layers' inputs and outputs on record, and the gradients at these outputs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from bali.inference.inputs import Inputs, call
from bali.layers.layer import Layer, UnsupportedLayerError
from bali.layers.packed import standing_in

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
        return cls(x, z, passed_on, (version_of(x), version_of(z), version_of(passed_on)))

    @property
    def changed_in_place(self) -> bool:
        return self.versions[:2] != (version_of(self.x), version_of(self.z))


def version_of(tensor: Tensor) -> int:
    """How often the tensor was written to; tensors made in inference mode do not count."""
    return 0 if tensor.is_inference() else tensor._version


class Recording:
    """A module with the layers that are looked at, and its trainable parameters that are in none of them."""

    def __init__(self, module: nn.Module, layers: Mapping[str, Layer], others: Mapping[str, nn.Parameter]) -> None:
        self.module, self.layers, self.others = module, dict(layers), dict(others)
        self.members = next(iter(self.layers.values())).members
        self.composites = {layer.part_of for layer in self.layers.values() if layer.part_of is not None}
        self._with_buffers = {name: m for name, m in module.named_modules() if any(True for _ in m.buffers(recurse=False))}
        # An in-place activation would overwrite the recorded outputs, so it gets a copy of them.
        self._copies_outputs = any(getattr(m, "inplace", False) for m in module.modules())

    def forward(self, x: Inputs, perturb: Perturbation | None = None) -> tuple[Tensor, dict[str, list[Call]]]:
        """The module's output, with the last dimension that a final squeeze(-1) took, and the calls of each layer."""
        calls: dict[str, list[Call]] = {name: [] for name in self.layers}
        handles = [
            layer.module.register_forward_hook(self._recorder(name, calls[name], perturb), with_kwargs=True)
            for name, layer in self.layers.items()
        ]
        try:
            with standing_in(self.composites) if self.composites else nullcontext():
                output = self.module(x) if isinstance(x, Tensor) else call(self.module, x)
        finally:
            for handle in handles:
                handle.remove()
        self._check(calls)
        return as_output(output, self.members), calls

    def backward(
        self, output: Tensor, gradient: Tensor, calls: Mapping[str, list[Call]], weight: Tensor | None
    ) -> tuple[dict[str, list[Tensor]], list[Tensor | None]]:
        """Gradients at the outputs of every call, and of `others`, from the one at the module's output.

        Gradients are linear in that one: roots of the examples' weights that go in there come out in every layer. The
        others take the weights themselves, and so a second pass.
        """
        named = [(name, call.z) for name, layer_calls in calls.items() for call in layer_calls]
        outputs, others = [z for _, z in named], list[Tensor](self.others.values())

        def found_for(wanted: list[Tensor], factor: Tensor | None, *, again: bool = False) -> tuple[Tensor | None, ...]:
            start = self.times(gradient, factor).reshape(output.shape)
            return torch.autograd.grad(output, wanted, start, retain_graph=again, allow_unused=True)

        if weight is None or not others:
            found = found_for(outputs + others, None if weight is None else weight.sqrt())
        else:
            found = found_for(outputs, weight.sqrt(), again=True) + found_for(others, weight)
        gradients: dict[str, list[Tensor]] = {name: [] for name in calls}
        for (name, _), g in zip(named, found[: len(named)], strict=True):
            if g is None:
                raise UnsupportedLayerError(f"layer '{name}' has no effect on the module's output; freeze or remove it")
            gradients[name].append(g)
        return gradients, list(found[len(named) :])

    def times(self, values: Tensor, factor: Tensor | None) -> Tensor:
        """Values (n, ..., D), or (K, n, D) of members, times a factor of each example, (n,) or (K, n)."""
        if factor is None:
            return values
        return values * (factor[..., None] if self.members else factor.reshape(-1, *[1] * (values.dim() - 1)))

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

    def _check(self, calls: Mapping[str, list[Call]]) -> None:
        for name, layer_calls in calls.items():
            if not layer_calls:
                raise UnsupportedLayerError(
                    f"layer '{name}' was not called in the forward pass. Freeze it with requires_grad_(False), name it "
                    "in `exclude`, or call it as a module (not through its weight) so that its inputs can be seen."
                )
            if any(call.changed_in_place for call in layer_calls):
                raise UnsupportedLayerError(
                    f"the input or output of layer '{name}' was changed in place after its use; use the out-of-place "
                    "form of what follows it"
                )

    def buffers(self) -> dict[str, Tensor]:
        """The module's buffers, such as running statistics, by name."""
        return {
            f"{name}.{own}".removeprefix("."): buffer
            for name, module in self._with_buffers.items()
            for own, buffer in module.named_buffers(recurse=False)
        }

    @contextmanager
    def restoring_buffers(self) -> Iterator[None]:
        """Puts the buffers back if the body fails."""
        kept = [(buffer, buffer.clone()) for buffer in self.buffers().values()] if self._with_buffers else []
        try:
            yield
        except BaseException:
            for buffer, value in kept:
                buffer.copy_(value)
            raise

    def assign(self, weights: Mapping[str, Tensor]) -> None:
        for name, matrix in weights.items():
            self.layers[name].assign(matrix)
        torch.clear_autocast_cache()  # which a user's own autocast would take the old weights from


def as_output(output: object, members: int | None) -> Tensor:
    """What the module returned, a tensor or an object that has one as its `logits`, as Hugging Face models do; with the last
    dimension that a final squeeze(-1) took."""
    found = getattr(output, "logits", output)
    if not isinstance(found, Tensor):
        raise TypeError(f"the module must return one tensor, or an object with `logits`; got {type(output).__name__}")
    return found.unsqueeze(-1) if found.dim() < (2 if members is None else 3) else found
