"""Forward and backward pass at the means, for the form of the update that has the prior in the objective."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from bali.conjugate.linalg import NumericalError
from bali.conjugate.moments import Moments
from bali.inference.distributed import Group
from bali.inference.inputs import Inputs, n_rows, tensors
from bali.inference.layer_rows import layer_batch
from bali.inference.network import Network
from bali.inference.statistics import LayerStatistics, sum_of_rows
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

    statistics: dict[str, LayerStatistics]  # moments of (X, G) of each layer
    log_likelihood: float  # mean
    squared_residual: Tensor | None  # mean outer product of y − z, in a regression
    of_others: list[Tensor | None]  # gradients of the log-likelihood's sum
    n_examples: int

    def summed(self, group: Group) -> JointPass:
        """Of the rows of all processes, each of which had some of the examples."""
        n, residual = float(self.n_examples), self.squared_residual
        rows = [float(statistics.moments.n) for statistics in self.statistics.values()]
        numbers = torch.tensor([n, n * self.log_likelihood, *rows], dtype=torch.float64, device=group.device)
        moments = [statistics.moments for statistics in self.statistics.values()]
        parts = [t for m in moments for t in (*([] if m.xx is None else m.xx.pack()), m.xy, m.yy)]
        gradients = [gradient for gradient in self.of_others if gradient is not None]
        residuals = [] if residual is None else [n * residual]
        found = iter(group.sum([numbers, *parts, *gradients, *residuals]))
        total, value, *counts = next(found).tolist()
        statistics = {}
        for (name, own), count in zip(self.statistics.items(), counts, strict=True):
            xx = None if own.moments.xx is None else own.moments.xx.unpack(found)
            statistics[name] = replace(own, moments=Moments(xx, next(found), next(found), count))
        of_others = [None if gradient is None else next(found) for gradient in self.of_others]
        residual = None if residual is None else next(found) / total
        return JointPass(statistics, value / total, residual, of_others, round(total))


def joint_pass(
    network: Network,
    likelihood: Likelihood,
    link: Link,
    x: Inputs,
    y: Tensor,
    noise_factor: Tensor | None,
    needs_inputs: Callable[[int], bool] = lambda n_inputs: True,
) -> JointPass:
    """Line 1 at the module's present weights. `noise_factor` is that of the observation noise in a regression.

    XᵀX is left out for layers with so many inputs that `needs_inputs` says no.
    """
    with torch.enable_grad():
        output, calls = network.forward(x)
        linked = link(output)
    z = linked.detach()
    y = likelihood.targets(y, z)
    values, gradient = likelihood.evaluate(z, y, noise_factor)
    total = float(values.sum())
    if not math.isfinite(total):
        raise NumericalError("the log-likelihood is not finite: look for NaN or extreme values in x and y")
    gradients, of_others = network.backward(linked, gradient.to(linked.dtype), calls, None)
    n = n_rows(x)
    found = {}
    with torch.autocast(tensors(x)[0].device.type, enabled=False):
        for name, layer in network.layers.items():
            inputs = [call.x for call in calls[name]]
            batch = layer_batch(layer, inputs, gradients[name], None, [], None, n)
            found[name] = sum_of_rows(batch, with_xx=needs_inputs(layer.n_inputs))
    residual = None
    if likelihood.has_true_targets:
        rows = (y - z).reshape(-1, z.shape[-1]).double()
        residual = rows.mT @ rows / len(rows)
    return JointPass(found, total / values.numel(), residual, of_others, n)
