"""How a module's outputs meet the likelihood and the units of the targets, from a look at a few examples."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from bali.inference.first_pass import output_layer_of
from bali.inference.joint_pass import Link
from bali.inference.network import Network
from bali.predictive.likelihoods import Bernoulli, Categorical, Gaussian, Likelihood
from bali.training.examples import Examples
from bali.training.fitted_values import Units

#: Examples to look at before training.
_FOR_LOOK = 64


def link_of(
    network: Network, likelihood: Likelihood, examples: Examples, *, weights_stay: bool
) -> tuple[Link, Units | None]:
    """How outputs meet the likelihood, from a look at a few examples; errors that say what to do come from here."""
    x, y = examples.take(torch.arange(min(_FOR_LOOK, len(examples))))
    modes = {m: m.training for m in network.module.modules()}
    network.module.eval()
    ends: list[nn.Module] = []
    with torch.no_grad(), _last_activation(network.module, ends):
        output, calls = network.forward(x)
    for m, mode in modes.items():
        m.training = mode
    classes_second = (
        not y.is_floating_point()
        and output.dim() == y.dim() + 1 > 2
        and output.shape[1:-1] != y.shape[1:]
        and output.shape[2:] == y.shape[1:]
    )
    if isinstance(likelihood, (Categorical, Bernoulli)):
        z = output.movedim(1, -1) if classes_second else output
        adds_up = z.shape[-1] > 1 and bool((z >= 0).all()) and bool(((z.sum(-1) - 1).abs() < 1e-4).all())
        name = type(ends[0]).__name__ if ends else "softmax" if adds_up else None
        if name is not None:
            raise ValueError(f"the module ends in a {name}; remove it: the likelihood takes logits and applies it itself")
    if not isinstance(likelihood, Gaussian):
        return Link(classes_second), None
    shift, scale = _scales(examples)
    if not bool(torch.isfinite(shift).all()):
        raise ValueError("y has infinite values; for durations that are not over yet take Weibull or LogNormalDuration")
    if weights_stay or _answers_in_units(output, y, shift, scale):
        units = Units(shift, scale, True, None)
        return Link(False, shift.to(output), scale.to(output)), units
    return Link(), Units(shift, scale, False, output_layer_of(output, network.layers, calls))


@contextmanager
def _last_activation(module: nn.Module, found: list[nn.Module]) -> Iterator[None]:
    """Puts into `found` the sigmoid or softmax whose output is the module's, if there is one."""
    last: list[tuple[nn.Module, object]] = []

    def note(activation: nn.Module, _: object, output: object) -> None:
        last[:] = [(activation, output)]

    def compare(_: nn.Module, __: object, output: object) -> None:
        found.extend(activation for activation, z in last if z is output)

    handles = [m.register_forward_hook(note) for m in module.modules() if isinstance(m, (nn.Sigmoid, nn.Softmax))]
    handles.append(module.register_forward_hook(compare))
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _answers_in_units(output: Tensor, y: Tensor, shift: Tensor, scale: Tensor) -> bool:
    """Whether outputs explain the targets as they are, as those of a pretrained module do: better than their mean does."""
    y = y.reshape(output.shape).double()
    in_units, standardised = (((z.double() - y) / scale).square().mean() for z in (output, shift + scale * output.double()))
    return bool(in_units < standardised and in_units < 1.0)


def _scales(examples: Examples) -> tuple[Tensor, Tensor]:
    """Mean and standard deviation of the targets, (D,)."""
    parts = [examples.take(torch.arange(s, min(s + 4096, len(examples))))[1] for s in range(0, len(examples), 4096)]
    y = torch.cat([part.double() for part in parts])
    y = y[:, None] if y.dim() == 1 else y.reshape(-1, y.shape[-1])
    scale = y.std(0) if len(y) > 1 else torch.ones_like(y[0])
    return y.mean(0), torch.where(scale > 0, scale, torch.ones_like(scale))


class Standardised:
    """Examples with standardised targets."""

    def __init__(self, whole: Examples, units: Units) -> None:
        self.whole, self.units = whole, units

    def __len__(self) -> int:
        return len(self.whole)

    def take(self, index: Tensor) -> tuple[Any, Tensor]:
        x, y = self.whole.take(index)
        dtype = y.dtype if y.is_floating_point() else torch.float32
        y = y[:, None] if y.dim() == 1 else y
        return x, ((y.double() - self.units.shift) / self.units.scale).to(dtype)
