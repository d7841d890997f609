"""The posterior of a table as plain values and tensors, and back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from bali.conjugate.matrix_normal import MatrixNormal
from bali.estimators import near_rows
from bali.estimators.encodings import Encoding
from bali.estimators.recipe import LIKELIHOODS, Recipe
from bali.inference.schema import SchemaError
from bali.training.row_noise import RowNoise
from bali.training.stack_posterior import StackPosterior
from bali.training.table_posterior import TablePosterior

#: Tensors of a layer's posterior, in the order of its fields.
PARTS = ("mean", "input_basis", "input_values", "output_basis", "output_values")


def to_plain(posterior: TablePosterior, encodings: Sequence[Encoding]) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """What a header says of it, and its tensors."""
    tensors: dict[str, Tensor] = {}
    for number, (stack, encoding) in enumerate(zip(posterior.stacks, encodings, strict=True)):
        tensors |= {f"{number}/{name}": value for name, value in stack.tensors().items()}
        tensors |= {f"{number}/{name}": torch.from_numpy(value) for name, value in encoding.to_arrays().items()}
    if posterior.noise is not None:
        tensors["noise"] = posterior.noise
    if posterior.offset is not None:
        tensors["offset"] = posterior.offset.double()
    row_noise = posterior.row_noise
    if row_noise is not None:
        tensors |= {f"row_noise/{number}": mean for number, mean in enumerate(row_noise.means)}
        tensors["row_noise/unit"] = row_noise.unit
    meta = {
        "width": posterior.width,
        "temperature": posterior.temperature,
        "noise_dof": posterior.noise_dof,
        "row_noise_gain": None if row_noise is None else row_noise.gain,
    }
    return meta, {name: torch.empty(tensor.shape, dtype=tensor.dtype).copy_(tensor) for name, tensor in tensors.items()}


def from_plain(
    recipe: Recipe, meta: Mapping[str, Any], tensors: Mapping[str, Tensor], device: torch.device
) -> tuple[TablePosterior, list[Encoding]]:
    """The posterior and the encodings of its stacks."""
    on = {name: tensor.to(device) for name, tensor in tensors.items()}
    stacks, encodings = [], []
    for number, stack in enumerate(recipe.stacks):
        layers = []
        for layer, variance in enumerate(stack.prior_variances):
            parts: dict[str, Any] = {name: on[f"{number}/{layer}/{name}"] for name in PARTS}
            layers.append(MatrixNormal(**parts, prior_variance=variance))
        stacks.append(StackPosterior(tuple(layers), recipe.activation))
        names = ("counts", "edges", *(near_rows.PARTS if stack.near else ()))
        encodings.append(Encoding.from_arrays({name: np.asarray(tensors[f"{number}/{name}"]) for name in names}))
        if encodings[-1].n_inputs != stack.layer_sizes[0]:
            raise SchemaError("its bins or near rows are not those of its networks")
    row_noise = None
    if meta["row_noise_gain"] is not None:
        row_noise = RowNoise([on["row_noise/0"], on["row_noise/1"]], on["row_noise/unit"], meta["row_noise_gain"])
    posterior = TablePosterior(
        tuple(stacks),
        tuple(LIKELIHOODS[stack.likelihood]() for stack in recipe.stacks),
        recipe.seed,
        meta["width"],
        meta["temperature"],
        on.get("offset"),
        on.get("noise"),
        meta["noise_dof"],
        row_noise,
    )
    return posterior, encodings
