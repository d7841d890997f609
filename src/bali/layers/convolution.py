"""Convolutions as rows times a weight matrix: a row is the patch of inputs that one output position sees.

| tensor  | shape                          | as rows                                                       |
|---------|--------------------------------|---------------------------------------------------------------|
| inputs  | (n, C_in, *size)               | (groups, n · positions, C_in/groups · kernel), padded first   |
| outputs | (n, C_out, *positions)         | (groups, n · positions, C_out/groups)                         |
| weights | (C_out, C_in/groups, *kernel)  | (groups, C_in/groups · kernel + 1, C_out/groups), bias last   |

Every group is a regression of its own. With one group, the leading dimension is left out.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional

from bali.conjugate.rows import Patches
from bali.layers.layer import Layer

Convolution = nn.Conv1d | nn.Conv2d | nn.Conv3d

#: Names of `padding_mode` as `functional.pad` has them.
_PADDING_MODES = {"zeros": "constant", "reflect": "reflect", "replicate": "replicate", "circular": "circular"}


class ConvolutionLayer(Layer):
    """`nn.Conv1d`, `nn.Conv2d` or `nn.Conv3d` with any stride, padding, dilation and groups."""

    def __init__(self, name: str, module: Convolution) -> None:
        self.name = name
        self.module = self._module = module
        self.groups, self.has_bias = module.groups, module.bias is not None
        self.in_features = module.in_channels // module.groups * math.prod(module.kernel_size)
        self.out_features = module.out_channels // module.groups

    def _patches(self, x: Tensor) -> Tensor:
        """A view (n, C_in, *positions, *kernel)."""
        module = self._module
        self._check(x)
        patches = self._padded(x)
        for dim, (size, stride, dilation) in enumerate(
            zip(module.kernel_size, module.stride, module.dilation, strict=True), start=2
        ):
            # A last dimension with all that lies between the patch's ends, of which every dilation-th is taken.
            patches = patches.unfold(dim, dilation * (size - 1) + 1, stride)[..., ::dilation]
        return patches

    def input_rows(self, x: Tensor) -> Tensor:
        module, patches = self._module, self._patches(x)
        dims = len(module.kernel_size)
        by_group = patches.reshape(len(x), module.groups, -1, *patches.shape[2:])
        channel_last = by_group.movedim(1, 0).movedim(2, 2 + dims)  # (groups, n, *positions, C_in/groups, *kernel)
        return self._drop_single_group(channel_last.reshape(module.groups, -1, self.in_features))

    def n_rows(self, z: Tensor) -> int:
        return z.numel() // z.shape[1]

    def some_input_rows(self, x: Tensor, index: Tensor) -> Tensor:
        """Patches are cut out only where they are wanted."""
        return self._of_positions(self._patches(x), index, self.in_features)

    def some_output_rows(self, z: Tensor, index: Tensor) -> Tensor:
        return self._of_positions(z, index, self.out_features)

    def _of_positions(self, values: Tensor, index: Tensor, features: int) -> Tensor:
        """Of values (n, C, *positions, ...) the rows with these numbers."""
        dims = len(self._module.kernel_size)
        places: list[Tensor | slice] = []
        for size in reversed(values.shape[2 : 2 + dims]):
            places.insert(0, index % size)
            index = index.div(size, rounding_mode="floor")
        places[:0] = [index, slice(None)]
        chosen = values[tuple(places)]  # (m, C, ...)
        return self._drop_single_group(chosen.reshape(len(index), self._module.groups, features).transpose(0, 1))

    def gradient_matrix(self, gradients: Sequence[Tensor]) -> Tensor:
        weight, *bias = gradients
        groups = self._module.groups
        matrix = weight.reshape(groups, self.out_features, -1).mT
        if bias:
            matrix = torch.cat([matrix, bias[0].reshape(groups, 1, -1)], dim=-2)
        return self._drop_single_group(matrix)

    def rows_for_products(self, x: Tensor) -> Tensor | Patches:
        """Patches are written out only where that is cheaper, for groups and for volumes."""
        module = self._module
        self._check(x)
        if module.groups > 1 or isinstance(module, nn.Conv3d):
            return self.input_rows(x)
        images, (kernel, stride, dilation) = self._padded(x), (module.kernel_size, module.stride, module.dilation)
        if isinstance(module, nn.Conv1d):  # a sequence is an image of one pixel's width
            images, kernel, stride, dilation = images[..., None], (*kernel, 1), (*stride, 1), (*dilation, 1)
        patches = Patches(images, (kernel[0], kernel[1]), (stride[0], stride[1]), (dilation[0], dilation[1]))
        return patches if patches.is_worth_it(self.out_features) else self.input_rows(x)

    def output_rows(self, z: Tensor) -> Tensor:
        by_group = z.reshape(len(z), self._module.groups, -1, *z.shape[2:])  # (n, groups, C_out/groups, *positions)
        return self._drop_single_group(by_group.movedim((1, 2), (0, -1)).flatten(1, -2))

    def from_rows(self, rows: Tensor, like: Tensor) -> Tensor:
        n, _, *positions = like.shape
        by_group = rows.reshape(self._module.groups, n, *positions, self.out_features)
        return by_group.movedim((0, -1), (1, 2)).flatten(1, 2)

    def weights(self) -> Tensor:
        module = self._module
        weight = module.weight.detach().reshape(module.groups, self.out_features, -1).mT
        if module.bias is not None:
            weight = torch.cat([weight, module.bias.detach().reshape(module.groups, 1, -1)], dim=-2)
        return self._drop_single_group(weight.clone())

    @torch.no_grad()
    def assign(self, weights: Tensor) -> None:
        module, d = self._module, self.in_features
        module.weight.copy_(weights[..., :d, :].mT.reshape(module.weight.shape))
        if module.bias is not None:
            module.bias.copy_(weights[..., d, :].reshape(-1))

    def _drop_single_group(self, tensor: Tensor) -> Tensor:
        return tensor.squeeze(0) if self._module.groups == 1 else tensor

    def _check(self, x: Tensor) -> None:
        dims = len(self._module.kernel_size)
        if x.dim() != dims + 2:
            raise ValueError(
                f"layer '{self.name}' ({type(self._module).__name__}) needs inputs (n, C, ...) of {dims + 2} dimensions, "
                f"got shape {tuple(x.shape)}; add the dimension of examples in front"
            )

    def _padded(self, x: Tensor) -> Tensor:
        module, pads = self._module, list[int]()
        for size, dilation, padding in zip(
            reversed(module.kernel_size), reversed(module.dilation), self._paddings(), strict=True
        ):
            total = dilation * (size - 1) if padding is None else 2 * padding
            pads += [total // 2, total - total // 2]  # where "same" needs an odd number, the end gets the larger share
        return functional.pad(x, pads, _PADDING_MODES[module.padding_mode]) if any(pads) else x

    def _paddings(self) -> list[int | None]:
        """Of each dimension, the last one first; None is "same"."""
        padding = self._module.padding
        if isinstance(padding, str):
            return [None if padding == "same" else 0] * len(self._module.kernel_size)
        return list(reversed(padding))
