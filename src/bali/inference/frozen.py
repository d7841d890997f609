"""The frozen part in front of the first trainable layer of a module: the same for every step and every weight sample.

What a module's forward does between its submodules is not known. So a part is taken for frozen only where a trial shows it:
its outputs do not move when all trainable weights do, and the module's output follows from them alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase

from bali.inference.inputs import Inputs, call, n_rows
from bali.inference.network import Network, as_output


class _Reached(Exception):
    """The features are computed, and nothing behind them is needed."""

    def __init__(self, features: Tensor) -> None:
        self.features = features


@dataclass(eq=False)
class FrozenBody:
    """`features` computes the outputs of the last frozen submodule. While it is `standing`, the module answers from those
    that are `given`, and the frozen part does not run."""

    network: Network
    last: str
    before: dict[str, tuple[int, ...]] = field(default_factory=dict)  # submodules that then need not run; shapes of a row
    given: Tensor | None = None  # features of the examples that the module is called with next

    @torch.no_grad()
    def features(self, x: Inputs) -> Tensor:
        def stop(_: nn.Module, __: object, output: Tensor) -> None:
            raise _Reached(output)

        handle = self.network.module.get_submodule(self.last).register_forward_hook(stop)
        try:
            call(self.network.module, x)
        except _Reached as reached:
            return reached.features.detach()
        finally:
            handle.remove()
        raise AssertionError(f"module '{self.last}' was not called")

    @contextmanager
    def standing(self, given: Tensor | None = None) -> Iterator[None]:
        self.given = given
        module = self.network.module
        modules = [module.get_submodule(name) for name in (self.last, *self.before)]
        try:
            vars(modules[0])["forward"] = self._answer
            for idle, shape in zip(modules[1:], self.before.values(), strict=True):
                vars(idle)["forward"] = partial(self._nothing, shape)
            yield
        finally:
            for replaced in modules:
                vars(replaced).pop("forward", None)
            self.given = None

    def _answer(self, *_: object, **__: object) -> Tensor:
        assert self.given is not None
        return self.given

    def _nothing(self, shape: tuple[int, ...], *_: object, **__: object) -> Tensor:
        """What nobody should look at: NaN would tell."""
        features = self._answer()
        return features.new_full((len(features), *shape), float("nan"))


#: A body, and its features of the examples that the module is called with.
KnownFeatures = tuple[FrozenBody, Tensor]


def answered_from(known: KnownFeatures | None) -> AbstractContextManager[None]:
    """While it lasts the body does not run, if there is one."""
    return nullcontext() if known is None else known[0].standing(known[1])


@torch.no_grad()
def frozen_body(network: Network, x: Inputs) -> FrozenBody | None:
    """That of the module, if it has one whose features can be kept; x are a few examples to try it on.

    The module is in the mode that it is trained in, and is left as it was.
    """
    trainable = _trainable(network)
    frozen = _outermost(network.module, trainable)
    owners = {name.rpartition(".")[0] for name in trainable}
    if not frozen or "" in owners or _sees_other_examples(network.module):
        return None
    with network.restoring_buffers():
        calls = _calls(network, x, frozen, owners)
        if calls is None:
            return None
        output, outputs = calls
        *earlier, last = outputs
        n = n_rows(x)
        shapes = {name: tuple(z.shape[1:]) for name in earlier if (z := outputs[name]).shape[:1] == (n,)}
        for before in [shapes, {}] if len(shapes) == len(earlier) else [{}]:
            body = FrozenBody(network, last, before)
            if outputs[last].shape[:1] == (n,) and _holds(body, x, output, trainable):
                return body
    return None


def _sees_other_examples(module: nn.Module) -> bool:
    """Whether a frozen norm takes its statistics from the batch."""
    norms = [m for m in module.modules() if isinstance(m, _NormBase) and m.training]
    return any(not any(p.requires_grad for p in norm.parameters()) for norm in norms)


def _trainable(network: Network) -> dict[str, nn.Parameter]:
    covered = {parameter for layer in network.layers.values() for parameter in layer.parameters()}
    names = network.module.named_parameters()
    return {name: parameter for name, parameter in names if parameter in covered or name in network.others}


def _outermost(module: nn.Module, trainable: Mapping[str, nn.Parameter]) -> list[str]:
    """The largest submodules that have parameters, none of which is trained."""
    found: list[str] = []
    for name, child in module.named_modules():
        inside = [f"{name}.{own}" for own, _ in child.named_parameters()]
        is_within = any(name.startswith(f"{other}.") for other in found)
        if name and inside and not is_within and not any(own in trainable for own in inside):
            found.append(name)
    return found


def _calls(network: Network, x: Inputs, frozen: list[str], owners: set[str]) -> tuple[Tensor, dict[str, Tensor]] | None:
    """The module's output, and those of the frozen submodules that are called, once, before any trainable one is."""
    order: list[tuple[str, object]] = []
    reached: list[nn.Module] = []

    def note(name: str, _: nn.Module, __: object, output: object) -> None:
        order.append((name, None if reached else output))

    def note_trainable(module: nn.Module, _: object) -> None:
        reached.append(module)

    module = network.module
    handles = [module.get_submodule(name).register_forward_hook(partial(note, name)) for name in frozen]
    for name in owners:
        parent = module.get_submodule(name.rpartition(".")[0])
        watched = parent if isinstance(parent, nn.MultiheadAttention) else module.get_submodule(name)  # it calls no parts
        handles.append(watched.register_forward_pre_hook(note_trainable))
    try:
        output = as_output(call(network.module, x), network.members)
    finally:
        for handle in handles:
            handle.remove()
    names = [name for name, _ in order]
    found = {name: z.clone() for name, z in order if isinstance(z, Tensor) and names.count(name) == 1}
    return (output, found) if found and len(found) == sum(z is not None for _, z in order) else None


def _holds(body: FrozenBody, x: Inputs, output: Tensor, trainable: Mapping[str, nn.Parameter]) -> bool:
    """Whether features stay when trainable weights move, and the output is that of the features."""
    module = body.network.module
    features = body.features(x)
    try:
        with body.standing(features):
            answered = as_output(call(module, x), body.network.members)
    except (RuntimeError, TypeError, ValueError):
        return False
    if not torch.equal(answered, output):
        return False
    kept = {name: parameter.detach().clone() for name, parameter in trainable.items()}
    try:
        for parameter in trainable.values():
            parameter.mul_(1.5).add_(0.1)
        return torch.equal(body.features(x), features)
    finally:
        for name, parameter in trainable.items():
            parameter.copy_(kept[name])
