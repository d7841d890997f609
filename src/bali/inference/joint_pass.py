"""Forward and backward pass at the means, for the form of the update that has the prior in the objective.

What is summed over the rows of a layer in a batch: XᵀG from the gradients of its weights, XᵀX and GᵀG from some of the rows.
A convolution or a sequence has a row at every position, many more than A and S need. Of each call of the layer, a sample of
rows is taken that spreads evenly over examples and positions, and its sums are scaled to all rows: in the mean over steps
they are those of all rows.
"""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from bali.conjugate.linalg import NumericalError
from bali.conjugate.moments import gram, input_gram
from bali.conjugate.rows import Tokens
from bali.conjugate.symmetric import Symmetric
from bali.inference.distributed import Group
from bali.inference.inputs import Inputs, n_rows, tensors
from bali.inference.network import Network
from bali.inference.recording import Call
from bali.layers.layer import Layer, UnsupportedLayerError
from bali.predictive.likelihoods import Likelihood

# --- sums over rows ---------------------------------------------------------------------------------------------------


#: So many rows, or half as many as there are inputs, are enough of one batch for averages over many of them.
_ENOUGH = 512
#: Multiples of it, modulo one, fill the interval evenly, however many there are.
_GOLDEN = 0.6180339887498949


@dataclass
class RowSums:
    """What a batch says about a layer. Averages that take it in use it up."""

    xy: Tensor  # XᵀG over the number of examples, (..., D_x, D_y)
    xx: Symmetric | None = None  # XᵀX; None at steps that leave it out
    yy: Tensor | None = None  # GᵀG, (..., D_y, D_y); likewise
    n: float = 0.0  # rows, where xx and yy are there

    def tensors(self, n_examples: float) -> list[Tensor]:
        """What is added up where several processes have rows."""
        return [n_examples * self.xy, *([] if self.xx is None else self.xx.pack()), *([] if self.yy is None else [self.yy])]

    def with_tensors(self, tensors: Iterator[Tensor], n: float, n_examples: float) -> RowSums:
        """With those that come next, of n rows."""
        xy = next(tensors) / n_examples
        return RowSums(
            xy, None if self.xx is None else self.xx.unpack(tensors), None if self.yy is None else next(tensors), n
        )


def enough_rows(n_inputs: int) -> int:
    return max(_ENOUGH, n_inputs // 2)


def even_sample(n: int, size: int, start: int, device: torch.device) -> Tensor:
    """`size` of the numbers below n, spread evenly; `start` tells one sample from the next."""
    multiples = torch.arange(start * size, (start + 1) * size, dtype=torch.float64, device=device) * _GOLDEN
    return (multiples.frac() * n).long()


class RowsTaken:
    """Rows of all calls of a layer, or a sample of them. Those of the gradients are taken while the backward pass is there,
    which keeps none of them whole."""

    def __init__(self, layer: Layer, calls: Sequence[Call], start: int) -> None:
        self.layer, self.inputs = layer, [call.x for call in calls]
        self.counts = [layer.n_rows(call.z) for call in calls]
        size = -(-enough_rows(layer.n_inputs) // len(calls))
        self.gradients: dict[int, Tensor] = {}
        self.index = [
            None if n <= size else even_sample(n, size, start * len(calls) + i, call.z.device)
            for i, (call, n) in enumerate(zip(calls, self.counts, strict=True))
        ]
        for i, call in enumerate(calls):
            call.z.register_hook(functools.partial(self._take, i))  # type: ignore[no-untyped-call]

    def _take(self, i: int, gradient: Tensor) -> None:
        index, own = self.index[i], self.layer.weight.dtype  # passes may have run in a narrower one
        rows = self.layer.output_rows(gradient) if index is None else self.layer.some_output_rows(gradient, index)
        self.gradients[i] = rows.detach().to(own)

    def pairs(self) -> list[tuple[Tensor | Tokens, Tensor]]:
        """Input and gradient rows of each call. Tokens are counted all, which costs nothing."""
        if len(self.gradients) < len(self.inputs):
            raise UnsupportedLayerError(
                f"layer '{self.layer.name}' has no effect on the module's output; freeze or remove it"
            )
        layer, found = self.layer, []
        for i, (x, index) in enumerate(zip(self.inputs, self.index, strict=True)):
            whole = index is None or layer.has_tokens
            rows = layer.input_rows(x) if whole or index is None else layer.some_input_rows(x, index)
            found.append((rows.to(layer.weight.dtype), self.gradients.pop(i)))
        return found


def gram_sums(taken: RowsTaken) -> tuple[Symmetric, Tensor, float]:
    """XᵀX, GᵀG and the number of rows of all calls of a layer."""
    layer, counts, of_calls = taken.layer, taken.counts, taken.pairs()
    if len(of_calls) > 1 and len(set(counts)) == 1 and not layer.has_tokens:  # one product instead of many
        x, g = ([part for part in parts if isinstance(part, Tensor)] for parts in zip(*of_calls, strict=True))
        of_calls, counts = [(torch.cat(x, dim=-2), torch.cat(g, dim=-2))], [sum(counts)]
    xx, yy = [], []
    for (rows, at_outputs), n in zip(of_calls, counts, strict=True):
        of_inputs, of_gradients = input_gram(rows, bias=layer.has_bias, root=None), _gradient_gram(at_outputs)
        if not isinstance(rows, Tokens) and rows.shape[-2] < n:
            of_inputs.scale_(n / rows.shape[-2])
        xx.append(of_inputs)
        yy.append(of_gradients.mul_(n / at_outputs.shape[-2]))
    total = functools.reduce(lambda a, b: a.plus(b), xx)
    return total, functools.reduce(operator.add, yy), float(sum(counts))


def _gradient_gram(rows: Tensor) -> Tensor:
    """GᵀG, once for blocks of a layer that have the same outputs."""
    if rows.dim() > 3 and rows.stride(0) == 0:
        return gram(rows[:1]).repeat(len(rows), *[1] * (rows.dim() - 1))
    return gram(rows)


# --- passes -----------------------------------------------------------------------------------------------------------


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
    taken: dict[str, RowsTaken] = {}
    with torch.enable_grad():
        if sample is None:
            output = network.plain_output(x)
        else:
            output, calls = network.forward(x)
            taken = {name: RowsTaken(network.layers[name], made, sample) for name, made in calls.items()}
            del calls  # and with it outputs that nobody needs
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
    of_parameters = _gradients(network, own, linked, mean_gradient)
    found = {}
    with torch.autocast(tensors(x)[0].device.type, enabled=False):
        for name, layer in network.layers.items():
            of_layer = [of_parameters[parameter] for parameter in own[name]]
            found[name] = _sums(layer, taken.pop(name, None), of_layer, n)
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
) -> dict[nn.Parameter, Tensor | None]:
    """Of all parameters, from the one at the outputs."""
    parameters = list(dict.fromkeys([*(p for of_layer in own.values() for p in of_layer), *network.others.values()]))
    with torch.enable_grad():  # a number has no gradient to be checked, for which torch would import another library first
        number = (linked * gradient).sum()
    return dict(zip(parameters, torch.autograd.grad(number, parameters, allow_unused=True), strict=True))


def _sums(layer: Layer, taken: RowsTaken | None, of_parameters: Sequence[Tensor | None], n_examples: int) -> RowSums:
    own = [g for g in of_parameters if g is not None]
    if len(own) < len(of_parameters):
        raise UnsupportedLayerError(f"layer '{layer.name}' has no effect on the module's output; freeze or remove it")
    xy = layer.gradient_matrix(own)
    if taken is None:
        return RowSums(xy)
    xx, yy, n = gram_sums(taken)
    return RowSums(xy, xx, yy.mul_(n_examples**2), n)  # gradients were those of the mean
