"""Weight matrices that lie inside larger parameters: the projections of attention, the gates of recurrent layers.

torch packs them for speed: one parameter holds the rows of several maps, and one map may have its columns in several
parameters, as the gates of a recurrent layer do, which see an input and a hidden state. `PackedLinear` is such a map as a
module of its own, that others can call and watch; the parameters stay where they are. `standing_in` has the modules run so.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.nn import functional

from bali.layers.layer import Composite, Layer, UnsupportedLayerError


class PackedLinear(nn.Module):
    """A linear map whose weight is some rows of an owner's parameters, side by side, and its bias the sum of theirs."""

    def __init__(
        self,
        owner: nn.Module,
        weights: Sequence[str],
        biases: Sequence[str],
        rows: slice,
        bias_rows: slice | None = None,  # where they are others
    ) -> None:
        super().__init__()
        self.owner, self.rows, self.bias_rows = owner, rows, rows if bias_rows is None else bias_rows
        self.weight_names, self.bias_names = list(weights), list(biases)

    def held(self, names: Sequence[str]) -> list[nn.Parameter]:
        found = [getattr(self.owner, name) for name in names]
        if not all(isinstance(parameter, nn.Parameter) for parameter in found):
            raise UnsupportedLayerError(
                f"a module of kind {type(self.owner).__name__} computes one of {list(names)} from other parameters. Remove "
                "the parametrisation, freeze the module with requires_grad_(False), or name it in `exclude`."
            )
        return found

    @property
    def blocks(self) -> list[Tensor]:
        """(D_out, D_in) of each part of the input."""
        return [weight[self.rows] for weight in self.held(self.weight_names)]

    @property
    def biases(self) -> list[Tensor]:
        return [bias[self.bias_rows] for bias in self.held(self.bias_names)]

    def forward(self, x: Tensor) -> Tensor:
        blocks, biases = self.blocks, self.biases
        parts = torch.split(x, [block.shape[1] for block in blocks], dim=-1) if len(blocks) > 1 else (x,)
        z = functional.linear(parts[0], blocks[0], biases[0] if biases else None)
        for i in range(1, len(blocks)):
            z = z + functional.linear(parts[i], blocks[i], biases[i] if biases else None)
        return z


class PackedLayer(Layer):
    """A `PackedLinear`. Where the bias is a sum of two parameters, the first holds it and the others become zero."""

    def __init__(self, name: str, module: PackedLinear, part_of: Composite, *, over_time: bool = False) -> None:
        self.name, self.part_of = name, part_of
        self.module = self._module = module
        self.calls_are_positions = over_time
        self.has_bias = bool(module.biases)
        self.in_features = sum(block.shape[1] for block in module.blocks)
        self.out_features = module.blocks[0].shape[0]

    @property
    def weight(self) -> Tensor:
        return self._module.blocks[0]

    def parameters(self) -> list[nn.Parameter]:
        return self._module.held([*self._module.weight_names, *self._module.bias_names])

    def input_rows(self, x: Tensor) -> Tensor:
        return x if x.dim() == 2 else x.reshape(-1, x.shape[-1])

    def output_rows(self, z: Tensor) -> Tensor:
        return self.input_rows(z)

    def from_rows(self, rows: Tensor, like: Tensor) -> Tensor:
        return rows.reshape(like.shape)

    def gradient_matrix(self, gradients: Sequence[Tensor]) -> Tensor:
        """Biases that add up have one gradient."""
        module, n = self._module, len(self._module.weight_names)
        rows = [gradient[module.rows].mT for gradient in gradients[:n]]
        if self.has_bias:
            rows.append(gradients[n][None, module.bias_rows])
        return torch.cat(rows)

    def weights(self) -> Tensor:
        rows = [block.detach().mT for block in self._module.blocks]
        if self.has_bias:
            rows.append(torch.stack([bias.detach() for bias in self._module.biases]).sum(0, keepdim=True))
        return torch.cat(rows)

    @torch.no_grad()
    def assign(self, weights: Tensor) -> None:
        start = 0
        for block in self._module.blocks:
            block.copy_(weights[start : start + block.shape[1]].mT)
            start += block.shape[1]
        for i, bias in enumerate(self._module.biases):
            bias.copy_(weights[start]) if i == 0 else bias.zero_()


def trainable_layers(
    name: str, maps: dict[str, PackedLinear], part_of: Composite, *, over_time: bool = False
) -> dict[str, Layer]:
    """A layer for every map with trainable weights, by the composite's name and the map's own."""
    found: dict[str, Layer] = {}
    for own, packed in maps.items():
        full = f"{name}.{own}".removeprefix(".")
        layer = PackedLayer(full, packed, part_of, over_time=over_time)
        trainable = [parameter.requires_grad for parameter in layer.parameters()]
        if any(trainable) and not all(trainable):
            raise UnsupportedLayerError(
                f"layer '{full}' is partly frozen: freeze all of {[*packed.weight_names, *packed.bias_names]}, or none, or "
                "name the module in `exclude`."
            )
        if all(trainable):
            found[full] = layer
    return found


@contextmanager
def standing_in(composites: Collection[Composite]) -> Iterator[None]:
    """The composites' own forward takes the place of their modules'; torch's short cuts, which call neither, are closed."""
    short_cuts = torch.backends.mha.get_fastpath_enabled()
    try:
        for composite in composites:
            vars(composite.module)["forward"] = composite.forward
        torch.backends.mha.set_fastpath_enabled(False)
        yield
    finally:
        for composite in composites:
            vars(composite.module).pop("forward", None)
        torch.backends.mha.set_fastpath_enabled(short_cuts)
