"""Wide linear layers and convolutions as a grid of blocks, whose factorisations are small.

Inputs and outputs of a layer are cut into equal parts, and every part of the weight matrix has a posterior of its own: R⁻¹
keeps its diagonal blocks only, and so does U. Blocks with the same outputs add up, and each of them would answer to the
whole gradient; a step of all of them together is as long as that of one matrix if each takes its share of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeGuard

from torch import Tensor
from torch.nn import functional

from bali.layers.convolution import ConvolutionLayer
from bali.layers.layer import Layer
from bali.layers.linear import LinearLayer


class BlockedLinearLayer(Layer):
    """`nn.Linear` or a convolution as (P, Q) matrices: P parts of the inputs, with the column of ones, Q of the outputs.

    Parts are filled up with columns of zeros where they do not come out even: those inputs have weights without effect, and
    those outputs have no gradient.
    """

    has_bias = False  # for the algebra: the column of ones is among the inputs

    def __init__(self, whole: LinearLayer | ConvolutionLayer, max_block: int) -> None:
        self.name, self._whole, self.weight_shape = whole.name, whole, (whole.n_inputs, whole.out_features)
        self.parts = tuple(-(-size // max_block) for size in self.weight_shape)
        self.in_features, self.out_features = (-(-n // p) for n, p in zip(self.weight_shape, self.parts, strict=True))
        self.step_share = 1.0 / self.parts[0]
        self.calls_are_positions = whole.calls_are_positions
        self.part_of, self.module = whole.part_of, whole.module

    @property
    def fan_in(self) -> int:
        return self._whole.fan_in

    @property
    def weight(self) -> Tensor:
        return self._whole.weight

    def _cut(self, rows: Tensor, axis: int) -> Tensor:
        """(n, D) to (parts, n, D / parts)."""
        size = self.in_features if axis == 0 else self.out_features
        padded = functional.pad(rows, (0, self.parts[axis] * size - rows.shape[-1]))
        return padded.reshape(len(rows), self.parts[axis], size).transpose(0, 1)

    def _cut_inputs(self, rows: Tensor) -> Tensor:
        if self._whole.has_bias:
            rows = functional.pad(rows, (0, 1), value=1.0)
        return self._cut(rows, 0).unsqueeze(1)

    def _cut_outputs(self, rows: Tensor) -> Tensor:
        return self._cut(rows, 1).expand(self.parts[0], -1, -1, -1)

    def input_rows(self, x: Tensor) -> Tensor:
        return self._cut_inputs(self._whole.input_rows(x))

    def output_rows(self, z: Tensor) -> Tensor:
        return self._cut_outputs(self._whole.output_rows(z))

    def n_rows(self, z: Tensor) -> int:
        return self._whole.n_rows(z)

    def some_input_rows(self, x: Tensor, index: Tensor) -> Tensor:
        return self._cut_inputs(self._whole.some_input_rows(x, index))

    def some_output_rows(self, z: Tensor, index: Tensor) -> Tensor:
        return self._cut_outputs(self._whole.some_output_rows(z, index))

    def from_rows(self, rows: Tensor, like: Tensor) -> Tensor:
        """Blocks with the same outputs add up."""
        together = rows.sum(0).transpose(0, 1)
        return self._whole.from_rows(together.reshape(len(together), -1)[:, : self.weight_shape[1]], like)

    def gradient_matrix(self, gradients: Sequence[Tensor]) -> Tensor:
        return self._in_blocks(self._whole.gradient_matrix(gradients))

    def weights(self) -> Tensor:
        return self._in_blocks(self._whole.weights())

    def _in_blocks(self, matrix: Tensor) -> Tensor:
        (p, q), (b, e) = self.parts, (self.in_features, self.out_features)
        n_in, n_out = self.weight_shape
        padded = functional.pad(matrix, (0, q * e - n_out, 0, p * b - n_in))
        return padded.reshape(p, b, q, e).transpose(1, 2).contiguous()

    def assign(self, weights: Tensor) -> None:
        p, q, b, e = weights.shape
        n_in, n_out = self.weight_shape
        self._whole.assign(weights.transpose(1, 2).reshape(p * b, q * e)[:n_in, :n_out])


#: Wider layers are cut: a factor of 4,096 inputs takes 134 MB, and its time grows with the cube of their number.
MAX_BLOCK = 4096


def _can_be_cut(layer: Layer) -> TypeGuard[LinearLayer | ConvolutionLayer]:
    if isinstance(layer, ConvolutionLayer):
        return layer.groups == 1
    return isinstance(layer, LinearLayer) and layer.members is None


def with_blocks(layers: dict[str, Layer], max_block: int, *, keep_last: bool) -> dict[str, Layer]:
    """The layers, with those cut into blocks that have more inputs or outputs than `max_block`.

    The last one stays whole if it is to be: the output layer of a regression, whose noise is the observations'.
    """

    def cut(name: str, layer: Layer) -> Layer:
        if not _can_be_cut(layer) or (keep_last and name == list(layers)[-1]):
            return layer
        return BlockedLinearLayer(layer, max_block) if max(layer.n_inputs, layer.out_features) > max_block else layer

    return {name: cut(name, layer) for name, layer in layers.items()}
