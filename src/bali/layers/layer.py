"""What the inference needs to know of a layer, whatever its kind: how it is rows times a weight matrix."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from bali.conjugate.moments import Rows
from bali.conjugate.rows import Tokens


class UnsupportedLayerError(TypeError):
    """A module has trainable parameters that BALI cannot treat; the message names it and a remedy."""


class Composite(ABC):
    """A module that uses several weight matrices without calling a module for each: attention, recurrence.

    While a network is run, `forward` stands in for the module's own: the same function, written with a module for every
    weight matrix, so that inputs and outputs of each can be recorded.
    """

    module: nn.Module
    layers: dict[str, Layer]  # those with trainable weights, by name

    @abstractmethod
    def forward(self, *args: Any, **kwargs: Any) -> object: ...


class Layer(ABC):
    """A module as a weight matrix W, (..., D_in + 1, D_out) with the bias row last: its output rows are (x, 1) W.

    Leading dimensions are regressions side by side: the members of a stack, or the groups of a convolution. Rows are
    ordered by example first, so that the rows of one example are neighbours.
    """

    #: Inputs and outputs are rows as they come, so that the layer can take in the data or be the output of a regression.
    takes_rows: ClassVar[bool] = False
    #: Input rows have a single one each (`rows.Tokens`), and so XᵀX is diagonal.
    has_tokens: ClassVar[bool] = False

    name: str
    module: nn.Module
    members: int | None = None  # K of stacked layers
    has_bias: bool
    in_features: int  # of one weight matrix, as below
    out_features: int
    step_share: float = 1.0  # of α that targets of the layer move; less where several matrices move the same outputs
    #: Calls of one forward pass are positions of the same examples, as the time steps of a recurrent layer are.
    calls_are_positions: bool = False
    part_of: Composite | None = None

    @property
    def fan_in(self) -> int:
        """Inputs that an output depends on, without the bias."""
        return self.in_features

    @property
    def weight(self) -> Tensor:
        """A parameter of the module, which tells type and device."""
        weight = self.module.weight
        assert isinstance(weight, Tensor)
        return weight

    def parameters(self) -> list[nn.Parameter]:
        """The parameters that hold its weight matrix, which other layers may share in parts."""
        return list(self.module.parameters(recurse=False))

    @property
    def n_inputs(self) -> int:
        """Rows of the weight matrix, the bias included."""
        return self.in_features + self.has_bias

    @abstractmethod
    def input_rows(self, x: Tensor) -> Tensor | Tokens:
        """Inputs as rows (..., m, D_in), without the column of ones."""

    def rows_for_products(self, x: Tensor) -> Rows:
        """`input_rows`, or what gives their products at less cost."""
        return self.input_rows(x)

    @abstractmethod
    def output_rows(self, z: Tensor) -> Tensor:
        """Outputs as rows (..., m, D_out)."""

    @abstractmethod
    def from_rows(self, rows: Tensor, like: Tensor) -> Tensor:
        """Rows of outputs in the shape of the outputs `like`: undoes `output_rows`."""

    def n_rows(self, z: Tensor) -> int:
        """Rows of the outputs of one call."""
        return z.shape[-2] if self.members is not None else z.numel() // z.shape[-1]

    def some_input_rows(self, x: Tensor, index: Tensor) -> Tensor:
        """Those of `input_rows` with these numbers, (..., len(index), D_in)."""
        rows = self.input_rows(x)
        assert isinstance(rows, Tensor)
        return rows[..., index, :]

    def some_output_rows(self, z: Tensor, index: Tensor) -> Tensor:
        """Those of `output_rows` with these numbers."""
        return self.output_rows(z)[..., index, :]

    def gradient_matrix(self, gradients: Sequence[Tensor]) -> Tensor:
        """XᵀG in the shape of the weight matrix, from the gradients of `parameters`: of a weight (..., D_out, D_in) and,
        where there is one, a bias."""
        weight, *bias = gradients
        return torch.cat([weight.mT, bias[0].unsqueeze(-2)], dim=-2) if bias else weight.mT

    @abstractmethod
    def weights(self) -> Tensor:
        """The module's own weights as a matrix, copied."""

    @abstractmethod
    def assign(self, weights: Tensor) -> None:
        """Write a weight matrix into the module."""
