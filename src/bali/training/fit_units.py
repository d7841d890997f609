"""How a module's outputs meet the likelihood and the units of the targets, from a look at a few examples."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from bali.inference.first_pass import output_layer_of
from bali.inference.health import HealthWarning
from bali.inference.inputs import tensors
from bali.inference.joint_pass import Link
from bali.inference.network import Network
from bali.predictive.likelihoods import Bernoulli, Categorical, Gaussian, Likelihood
from bali.training.examples import Examples
from bali.training.fitted_values import Units

#: Examples to look at before training.
_FOR_LOOK = 64
#: Of a column or an image; standardised ones have 1. With larger ones, a network's first outputs are as far off.
_LARGEST_INPUT = 30.0
#: The share of the targets' variance that a module explains as it is, if it was trained on them: with so few examples,
#: chance gives an untrained one a few hundredths.
_LEAST_EXPLAINED = 0.1


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
    classes_second = _has_channels_second(output, y)
    if isinstance(likelihood, (Categorical, Bernoulli)):
        z = output.movedim(1, -1) if classes_second else output
        adds_up = z.shape[-1] > 1 and bool((z >= 0).all()) and bool(((z.sum(-1) - 1).abs() < 1e-4).all())
        name = type(ends[0]).__name__ if ends else "softmax" if adds_up else None
        if name is not None:
            raise ValueError(f"the module ends in a {name}; remove it: the likelihood takes logits and applies it itself")
    if not isinstance(likelihood, Gaussian):
        return Link(classes_second), None
    if classes_second:
        output, examples = output.movedim(1, -1), with_channels_last(examples, output.dim())
        y = examples.take(torch.arange(len(y)))[1]
    shift, scale = _scales(examples)
    if not bool(torch.isfinite(shift).all()):
        raise ValueError("y has infinite values; for durations that are not over yet take Weibull or LogNormalDuration")
    if weights_stay or _answers_in_units(output, y, shift, scale):
        units = Units(shift, scale, True, None)
        return Link(classes_second, shift.to(output), scale.to(output)), units
    return Link(classes_second), Units(shift, scale, False, output_layer_of(output, network.layers, calls))


def output_shape(network: Network, link: Link, examples: Examples) -> torch.Size:
    """Of one example, as the likelihood sees it: (1, ..., D) with a place for each observation."""
    with network.evaluating():
        return link(network.plain_output(examples.take(torch.arange(1))[0])).shape


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


def _has_channels_second(output: Tensor, y: Tensor) -> bool:
    """Whether outputs are (n, C, ...): classes as torch's cross entropy has them, or an image for each image."""
    if y.is_floating_point():
        is_image_too = y.dim() == output.dim() and y.shape[2:] == output.shape[2:]
        return output.dim() > 3 and (is_image_too or (output.shape[1] == 1 and y.shape[1:] == output.shape[2:]))
    return output.dim() == y.dim() + 1 > 2 and output.shape[1:-1] != y.shape[1:] and output.shape[2:] == y.shape[1:]


def _answers_in_units(output: Tensor, y: Tensor, shift: Tensor, scale: Tensor) -> bool:
    """Whether outputs explain the targets as they are, as those of a pretrained module do."""
    y = y.reshape(output.shape).double()
    z = output.double()
    of_mean = ((y - y.reshape(-1, y.shape[-1]).mean(0)) / scale).square().mean()
    in_units, standardised = (((found - y) / scale).square().mean() for found in (z, shift + scale * z))
    return bool(in_units < standardised and in_units < (1.0 - _LEAST_EXPLAINED) * of_mean)


def warn_of_large_inputs(examples: Examples) -> None:
    """Torch's initial weights are for inputs of about 1."""
    x, _ = examples.take(torch.arange(min(16 * _FOR_LOOK, len(examples))))
    for part in tensors(x):
        if not part.is_floating_point():
            continue
        sizes = part.double().square().mean(0).sqrt() if part.dim() == 2 else part.double().square().mean().sqrt()[None]
        if float(sizes.max()) > _LARGEST_INPUT:
            where = f"column {int(sizes.argmax())} of x (from 0)" if part.dim() == 2 else "x"
            warnings.warn(
                f"{where} has values of about {float(sizes.max()):.3g}. Networks start from weights that are made for "
                "inputs of about 1, and learn slowly and badly from such; standardise it",
                HealthWarning,
                stacklevel=3,
            )


def _scales(examples: Examples) -> tuple[Tensor, Tensor]:
    """Mean and standard deviation of the targets, (D,)."""
    parts = [examples.take(torch.arange(s, min(s + 4096, len(examples))))[1] for s in range(0, len(examples), 4096)]
    y = torch.cat([part.double() for part in parts])
    y = y[:, None] if y.dim() == 1 else y.reshape(-1, y.shape[-1])
    scale = y.std(0) if len(y) > 1 else torch.ones_like(y[0])
    return y.mean(0), torch.where(scale > 0, scale, torch.ones_like(scale))


class ChannelsLast:
    """Examples whose targets are images (n, C, ...), as (n, ..., C)."""

    def __init__(self, whole: Examples) -> None:
        self.whole = whole

    def __len__(self) -> int:
        return len(self.whole)

    def take(self, index: Tensor) -> tuple[Any, Tensor]:
        x, y = self.whole.take(index)
        return x, y.movedim(1, -1)


def with_channels_last(examples: Examples, n_dims: int) -> Examples:
    """For outputs that have their channels second; targets of as many dimensions have them there, too."""
    _, y = examples.take(torch.arange(1))
    return ChannelsLast(examples) if y.dim() == n_dims and y.is_floating_point() else examples


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
