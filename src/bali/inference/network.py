"""A module run with its layers' inputs and outputs on record, and its weights put back whatever happens."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase

from bali.inference.inputs import Inputs, call
from bali.layers.blocks import MAX_BLOCK, with_blocks
from bali.layers.kinds import find_layers, is_inside
from bali.layers.layer import Composite, Layer, UnsupportedLayerError

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
    def __init__(
        self,
        module: nn.Module,
        exclude: Collection[str] = (),
        *,
        has_optimizer: bool = False,
        only: Collection[str] | None = None,
        max_block: int = MAX_BLOCK,
        has_true_targets: bool = False,
    ) -> None:
        self.module = module
        exclude = (exclude,) if isinstance(exclude, str) else exclude
        only = (only,) if isinstance(only, str) else only
        self.only = only
        for setting, names in (("exclude", exclude), ("only", only or ())):
            unknown = set(names) - {name for name, _ in module.named_modules()}
            if unknown:
                raise ValueError(f"{setting} names unknown modules {sorted(unknown)}; see module.named_modules()")
        if exclude and not has_optimizer:
            raise ValueError(
                "exclude needs an optimizer that trains what is excluded; to keep it as it is, call requires_grad_(False)"
            )
        found = find_layers(module, exclude, has_optimizer=has_optimizer, only=only)
        self.layers: dict[str, Layer] = with_blocks(found, max_block, keep_last=has_true_targets)
        self.composites = {layer.part_of for layer in self.layers.values() if layer.part_of is not None}
        self.members = next(iter(self.layers.values())).members
        covered = {parameter for layer in self.layers.values() for parameter in layer.parameters()}
        #: Trainable parameters without a posterior.
        self.others: dict[str, nn.Parameter] = {
            name: parameter
            for name, parameter in module.named_parameters()
            if parameter.requires_grad and parameter not in covered and (only is None or is_inside(name, only))
        }
        if self.others and self.members is not None:
            raise UnsupportedLayerError(f"stacked networks cannot have parameters without posterior: {list(self.others)}")
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
            with _standing_in(self.composites):
                output = call(self.module, x)
        finally:
            for handle in handles:
                handle.remove()
        self._check(calls)
        return as_output(output, self.members), calls

    def plain_output(self, x: Inputs) -> Tensor:
        """The module's output, with nothing recorded."""
        return as_output(call(self.module, x), self.members)

    def backward(
        self, output: Tensor, gradient: Tensor, calls: Mapping[str, list[Call]], weight: Tensor | None
    ) -> tuple[dict[str, list[Tensor]], list[Tensor | None]]:
        """Gradients at the outputs of every call, and of `others`, from the one at the module's output.

        Gradients are linear in that one: roots of the examples' weights that go in there come out in every layer. The
        others take the weights themselves, and so a second pass.
        """
        named = [(name, call.z) for name, layer_calls in calls.items() for call in layer_calls]
        outputs, others = [z for _, z in named], list[Tensor](self.others.values())
        if weight is None or not others:
            rooted = gradient if weight is None else self.times(gradient, weight.sqrt())
            found = torch.autograd.grad(output, outputs + others, rooted.reshape(output.shape), allow_unused=True)
        else:
            parts = [(outputs, weight.sqrt(), True), (others, weight, False)]
            found = tuple(
                g
                for wanted, factor, again in parts
                for g in torch.autograd.grad(
                    output, wanted, self.times(gradient, factor).reshape(output.shape), again, allow_unused=True
                )
            )
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

    def weights(self) -> dict[str, Tensor]:
        return {name: layer.weights() for name, layer in self.layers.items()}

    def assign(self, weights: Mapping[str, Tensor]) -> None:
        for name, matrix in weights.items():
            self.layers[name].assign(matrix)
        torch.clear_autocast_cache()  # which a user's own autocast would take the old weights from

    def train(self) -> None:
        """Training mode, but for modules outside of `only` and for norms that are frozen: they stay as they are."""
        self.module.train()
        for name, module in self.module.named_modules():
            own = list(module.parameters(recurse=False))
            is_frozen = isinstance(module, _NormBase) and bool(own) and not any(p.requires_grad for p in own)
            if is_frozen or (self.only is not None and not is_inside(name, self.only)):
                module.training = False

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


def as_output(output: object, members: int | None) -> Tensor:
    """What the module returned, a tensor or an object that has one as its `logits`, as Hugging Face models do; with the last
    dimension that a final squeeze(-1) took."""
    found = getattr(output, "logits", output)
    if not isinstance(found, Tensor):
        raise TypeError(f"the module must return one tensor, or an object with `logits`; got {type(output).__name__}")
    return found.unsqueeze(-1) if found.dim() < (2 if members is None else 3) else found


@contextmanager
def _standing_in(composites: Iterable[Composite]) -> Iterator[None]:
    """Modules that are several layers in one run as such; torch's own short cuts, which call none of them, are closed."""
    composites = list(composites)
    short_cuts = torch.backends.mha.get_fastpath_enabled()
    try:
        for composite in composites:
            vars(composite.module)["forward"] = composite.forward
        if composites:
            torch.backends.mha.set_fastpath_enabled(False)
        yield
    finally:
        for composite in composites:
            vars(composite.module).pop("forward", None)
        torch.backends.mha.set_fastpath_enabled(short_cuts)
