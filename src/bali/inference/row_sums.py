"""Sums over the rows of one layer in a batch: XᵀG from the gradients of its weights, XᵀX and GᵀG from some of the rows.

A convolution or a sequence has a row at every position, many more than A and S need. Of each call of the layer, a sample of
rows is taken that spreads evenly over examples and positions, and its sums are scaled to all rows: in the mean over steps
they are those of all rows.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from bali.conjugate.gram import gram, input_gram
from bali.conjugate.rows import Tokens
from bali.conjugate.symmetric import Symmetric
from bali.layers.layer import Layer

#: So many rows, or half as many as there are inputs, are enough of one batch for averages over many of them.
_ENOUGH = 512
#: Multiples of it, modulo one, fill the interval evenly, however many there are.
_GOLDEN = 0.6180339887498949


@dataclass(frozen=True)
class RowSums:
    """What a batch says about a layer."""

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


def gram_sums(
    layer: Layer, inputs: Sequence[Tensor], gradients: Sequence[Tensor], start: int
) -> tuple[Symmetric, Tensor, float]:
    """XᵀX, GᵀG and the number of rows of all calls of a layer."""
    counts = [layer.n_rows(g) for g in gradients]
    size = -(-enough_rows(layer.n_inputs) // len(counts))
    of_calls: list[tuple[Tensor | Tokens, Tensor]] = [
        _rows_of_call(layer, x, g, n, size, start * len(counts) + i)
        for i, (x, g, n) in enumerate(zip(inputs, gradients, counts, strict=True))
    ]
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


def _rows_of_call(
    layer: Layer, x: Tensor, gradient: Tensor, n: int, size: int, start: int
) -> tuple[Tensor | Tokens, Tensor]:
    """Input and gradient rows of one call: all of them, or a sample. Tokens are counted all, which costs nothing."""
    own = layer.weight.dtype  # passes may have run in a narrower one
    if n <= size:
        return layer.input_rows(x).to(own), layer.output_rows(gradient).to(own)
    index = even_sample(n, size, start, gradient.device)
    rows = layer.input_rows(x) if layer.has_tokens else layer.some_input_rows(x, index)
    return rows.to(own), layer.some_output_rows(gradient, index).to(own)
