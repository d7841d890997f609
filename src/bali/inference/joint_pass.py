"""Forward and backward pass at the means, for the form of the update that has the prior in the objective."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from bali.conjugate.linalg import NumericalError
from bali.inference.distributed import Group
from bali.inference.inputs import Inputs, n_rows, tensors
from bali.inference.network import Network
from bali.inference.recording import Call
from bali.inference.row_sums import RowSums, gram_sums
from bali.layers.layer import Layer, UnsupportedLayerError
from bali.predictive.likelihoods import Likelihood


@dataclass(frozen=True)
class Link:
    """From a module's outputs to what the likelihood sees: (z − shift) / scale, classes last."""

    classes_second: bool = False  # outputs are (n, C, ...), as torch's own cross entropy has them
    shift: Tensor | None = None  # of a module that answers in the units of the targets
    scale: Tensor | None = None

    def __call__(self, output: Tensor) -> Tensor:
        z = output.movedim(1, -1) if self.classes_second else output
        return z if self.scale is None or self.shift is None else (z - self.shift) / self.scale


@dataclass(frozen=True)
class JointPass:
    """What one batch says."""

    sums: dict[str, RowSums]  # of each layer
    log_likelihood: float  # mean
    squared_residual: Tensor | None  # mean outer product of y − z, in a regression
    of_others: list[Tensor | None]  # gradients of the log-likelihood's sum over the number of examples
    n_examples: int

    def summed(self, group: Group) -> JointPass:
        """Of the rows of all processes, each of which had some of the examples."""
        n, residual = float(self.n_examples), self.squared_residual
        rows = [sums.n for sums in self.sums.values()]
        numbers = torch.tensor([n, n * self.log_likelihood, *rows], dtype=torch.float64, device=group.device)
        parts = [part for sums in self.sums.values() for part in sums.tensors(n)]
        gradients = [n * gradient for gradient in self.of_others if gradient is not None]
        residuals = [] if residual is None else [n * residual]
        found = iter(group.sum([numbers, *parts, *gradients, *residuals]))
        total, value, *counts = next(found).tolist()
        of_layers = {
            name: own.with_tensors(found, count, total) for (name, own), count in zip(self.sums.items(), counts, strict=True)
        }
        of_others = [None if gradient is None else next(found) / total for gradient in self.of_others]
        residual = None if residual is None else next(found) / total
        return JointPass(of_layers, value / total, residual, of_others, round(total))


def joint_pass(
    network: Network,
    likelihood: Likelihood,
    link: Link,
    x: Inputs,
    y: Tensor,
    noise_factor: Tensor | None,
    sample: int | None = 0,
) -> JointPass:
    """Line 1 at the module's present weights. `noise_factor` is that of the observation noise in a regression.

    `sample` numbers the sample of rows that XᵀX and GᵀG are taken from. With None they are left out: the module then runs
    as it is, without anything recorded, and the step costs what one of an optimizer does.
    """
    calls: dict[str, list[Call]] = {}
    with torch.enable_grad():
        if sample is None:
            output = network.plain_output(x)
        else:
            output, calls = network.forward(x)
        linked = link(output)
    z = linked.detach()
    y = likelihood.targets(y, z)
    values, gradient = likelihood.evaluate(z, y, noise_factor)
    total = float(values.sum())
    if not math.isfinite(total):
        raise NumericalError("the log-likelihood is not finite: look for NaN or extreme values in x and y")
    n = n_rows(x)
    mean_gradient = gradient.to(linked.dtype).reshape(linked.shape) / n
    own = {name: layer.parameters() for name, layer in network.layers.items()}
    of_outputs, of_parameters = _gradients(network, own, linked, mean_gradient, calls)
    found = {}
    with torch.autocast(tensors(x)[0].device.type, enabled=False):
        for name, layer in network.layers.items():
            of_layer = [of_parameters[parameter] for parameter in own[name]]
            found[name] = _sums(layer, calls.get(name, []), of_outputs.get(name, []), of_layer, sample, n)
    residual = None
    if likelihood.has_true_targets:
        rows = (y - z).reshape(-1, z.shape[-1]).double()
        residual = rows.mT @ rows / len(rows)
    of_others = [of_parameters[parameter] for parameter in network.others.values()]
    return JointPass(found, total / values.numel(), residual, of_others, n)


def _gradients(
    network: Network,
    own: Mapping[str, list[nn.Parameter]],
    linked: Tensor,
    gradient: Tensor,
    calls: Mapping[str, list[Call]],
) -> tuple[dict[str, list[Tensor]], dict[nn.Parameter, Tensor | None]]:
    """From the one at the outputs: gradients at the outputs of every call of a layer, and of all parameters."""
    parameters = list(dict.fromkeys([*(p for of_layer in own.values() for p in of_layer), *network.others.values()]))
    outputs = [call.z for of_layer in calls.values() for call in of_layer]
    with torch.enable_grad():  # a number has no gradient to be checked, for which torch would import another library first
        number = (linked * gradient).sum()
    found = torch.autograd.grad(number, [*outputs, *parameters], allow_unused=True)
    at_outputs = iter(found[: len(outputs)])
    of_outputs = {name: [next(at_outputs) for _ in of_layer] for name, of_layer in calls.items()}
    return of_outputs, dict(zip(parameters, found[len(outputs) :], strict=True))


def _sums(
    layer: Layer,
    calls: Sequence[Call],
    of_outputs: Sequence[Tensor | None],
    of_parameters: Sequence[Tensor | None],
    sample: int | None,
    n_examples: int,
) -> RowSums:
    own, at_outputs = ([g for g in found if g is not None] for found in (of_parameters, of_outputs))
    if len(own) < len(of_parameters) or len(at_outputs) < len(of_outputs):
        raise UnsupportedLayerError(f"layer '{layer.name}' has no effect on the module's output; freeze or remove it")
    xy = layer.gradient_matrix(own)
    if sample is None:
        return RowSums(xy)
    xx, yy, n = gram_sums(layer, [call.x for call in calls], at_outputs, sample)
    return RowSums(xy, xx, yy.mul_(n_examples**2), n)  # gradients were those of the mean
