"""Gradients of the log-likelihood, row by row, at the outputs of every layer.

The gradient of one row with respect to a weight matrix is the outer product of the layer's input x (with a one for the
bias) and the gradient g at the layer's output. Gradients of the weights, their squares and their Kronecker factors are all
products of the two stacks of rows X (K, B, D_in + 1) and G (K, B, D_out).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from bali.layers.modules import ACTIVATIONS
from bali_benchmarks.baselines.method import Task
from bali_benchmarks.baselines.perceptrons import affine


@dataclass(frozen=True)
class Rows:
    """What a mini-batch tells of every layer."""

    inputs: list[Tensor]  # X, without the column of ones
    gradients: list[Tensor]  # G of log p(y | x) for the observed targets
    fisher_gradients: list[Tensor]  # G for targets drawn from the network's own predictive distribution; may be empty
    outputs: Tensor  # of the network, (K, B, D_out)

    def weight_gradients(self) -> list[Tensor]:
        """Gradients of the mean log-likelihood of the rows, (K, D_in + 1, D_out)."""
        return [_product(x, g) / x.shape[1] for x, g in zip(self.inputs, self.gradients, strict=True)]

    def squared_gradients(self) -> list[Tensor]:
        """Mean over rows of the squared gradient of each row.

        A row's gradient is x gᵀ, so that the squares of its entries are x² g²ᵀ and their sum over rows is one product of
        matrices. The same as squaring the gradients that torch.func.vmap finds row by row, which are never formed here.
        """
        pairs = zip(self.inputs, self.gradients, strict=True)
        return [_product(x.square(), g.square()) / x.shape[1] for x, g in pairs]


def _product(x: Tensor, g: Tensor) -> Tensor:
    """(X, 1)ᵀG, (K, D_in + 1, D_out); with the narrower matrix on the left, which batched products are much faster at."""
    product = x.mT @ g if x.shape[-1] < g.shape[-1] else (g.mT @ x).mT
    return torch.cat([product, g.sum(1, keepdim=True)], 1)


def gradient_rows(
    task: Task, weights: Sequence[Tensor], x: Tensor, y: Tensor, noise: Tensor, *, fisher: torch.Generator | None = None
) -> Rows:
    """One forward and one backward pass at given weights; a second backward pass for `fisher_gradients` if wanted."""
    activation = ACTIVATIONS[task.activation]()
    inputs, hidden = [x], []
    for weight in weights[:-1]:
        before = affine(inputs[-1], weight).requires_grad_()
        with torch.enable_grad():
            after = activation(before)
        hidden.append((before, after))
        inputs.append(after.detach())
    z = affine(inputs[-1], weights[-1])
    gradients = _backward(weights, hidden, output_gradient(task, z, y, noise))
    drawn = [] if fisher is None else _backward(weights, hidden, _output_gradient_of_draw(task, z, noise, fisher))
    return Rows(inputs, gradients, drawn, z)


def _backward(weights: Sequence[Tensor], hidden: Sequence[tuple[Tensor, Tensor]], gradient: Tensor) -> list[Tensor]:
    """Gradients at the outputs of all layers, from that at the network's. Activations know their own derivatives."""
    gradients = [gradient]
    for weight, (before, after) in zip(reversed(weights[1:]), reversed(hidden), strict=True):
        w = weight[:, :-1].mT
        upstream = gradients[-1] * w if w.shape[1] == 1 else gradients[-1] @ w
        gradients += torch.autograd.grad(after, before, upstream, retain_graph=True)
    return gradients[::-1]


def output_gradient(task: Task, z: Tensor, y: Tensor, noise: Tensor) -> Tensor:
    """∇_z log p(y | z) of every row: (y − z) / σ², or the class less the probabilities."""
    if task.classification:
        return functional.one_hot(y, z.shape[-1]).to(z.dtype) - z.softmax(-1)
    return (y - z) / noise[:, None, None]


def _output_gradient_of_draw(task: Task, z: Tensor, noise: Tensor, generator: torch.Generator) -> Tensor:
    """Gradients for targets drawn from p(y | z), whose second moment is the Fisher matrix (Martens and Grosse, 2015).

    Drawn regression targets are z ± σ: the same two moments as the Gaussian's, hence the same Fisher matrix, and for a
    single output without any sampling error.
    """
    if task.classification:
        drawn = torch.multinomial(z.softmax(-1).flatten(0, 1), 1, generator=generator).view(z.shape[:2])
        return output_gradient(task, z, drawn, noise)
    signs = torch.randint(0, 2, z.shape, generator=generator, device=z.device).to(z.dtype).mul_(2).sub_(1)
    return signs / noise.sqrt()[:, None, None]
