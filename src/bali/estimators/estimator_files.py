"""Fitted estimators as files: parameters and plain attributes in the header, arrays as tensors.

What each kind of estimator keeps, and what it must be, is its `FileSchema`. It is checked when a file is written, so that
what is written can be read, and when one is read, before anything is built. The posterior of a table is plain values and
tensors, too.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from bali import files
from bali.conjugate.matrix_normal import MatrixNormal
from bali.estimators import near_rows
from bali.estimators.encodings import Encoding
from bali.estimators.recipe import LIKELIHOODS, Recipe
from bali.inference.schema import SchemaError
from bali.training.table_posterior import RowNoise, StackPosterior, TablePosterior

if TYPE_CHECKING:
    from bali.estimators.distributional import DistributionalEstimator

KIND = "estimator"
_STATE = "state/"
Estimator = TypeVar("Estimator", bound="DistributionalEstimator")


def save(estimator: DistributionalEstimator, path: str | os.PathLike[str], extra: dict[str, Any] | None = None) -> None:
    """Write a fitted estimator, with `extra` (plain JSON) beside it in the header."""
    schema, state = estimator.file_schema, estimator.fitted_state()
    fitted = {name: _plain(getattr(estimator, name)) for name in schema.fitted if hasattr(estimator, name)}
    if "classes_" in fitted:
        fitted["classes_"] = {"values": fitted["classes_"], "dtype": estimator.classes_.dtype.str}
    meta = {
        "class": type(estimator).__name__,
        "parameters": {name: _plain(value) for name, value in estimator.get_params().items()},
        "fitted": fitted,
        "state": state["meta"],
        "extra": extra or {},
    }
    tensors = {f"{_STATE}{name}": tensor for name, tensor in state["tensors"].items()}
    tensors |= {name: torch.from_numpy(getattr(estimator, name)) for name in schema.arrays}
    with files.refusing(path, "cannot be written"):
        schema.check(json.loads(json.dumps(meta)), tensors)
    files.write(path, KIND, meta, tensors)


def load_kinds(path: str | os.PathLike[str], kinds: Sequence[type[Estimator]]) -> tuple[Estimator, dict[str, Any]]:
    """An estimator of one of these kinds, and what was written beside it."""
    meta, tensors = files.read(path, KIND)
    with files.refusing(path, *files.DAMAGED):
        classes = {kind.__name__: kind for kind in kinds}
        name = str(meta.get("class"))
        if name not in classes:
            raise files.ModelFileError(f"holds a {name[:50]!r}; expected one of {', '.join(classes)}")
        kind = classes[name]
        schema = kind.file_schema
        schema.check(meta, tensors)
        estimator = kind(**meta["parameters"])
        for name, value in meta["fitted"].items():
            setattr(estimator, name, value)
        if "classes_" in meta["fitted"]:
            estimator.classes_ = _labels(**meta["fitted"]["classes_"])
        if "feature_names_in_" in meta["fitted"]:
            estimator.feature_names_in_ = np.array(meta["fitted"]["feature_names_in_"], dtype=object)
        for name in schema.arrays:
            setattr(estimator, name, tensors[name].numpy())
        state = {name.removeprefix(_STATE): tensor for name, tensor in tensors.items() if name.startswith(_STATE)}
        estimator.restore_fitted_state({"meta": meta["state"], "tensors": state})
        return estimator, meta["extra"]


def _plain(value: Any) -> Any:
    """As JSON can say it. A random generator is left out: the seed that it gave is kept."""
    if isinstance(value, np.random.RandomState):
        return None
    if isinstance(value, (np.ndarray, np.generic)):
        return value.tolist()
    return [_plain(item) for item in value] if isinstance(value, (list, tuple, range)) else value


def _labels(values: list[Any], dtype: str) -> Any:
    labels = np.array(values, dtype=np.dtype(dtype))
    if labels.tolist() != values or np.unique(labels).tolist() != values:
        raise SchemaError(f"its classes are not distinct, in order and of type {dtype}")
    return labels


# --- the posterior of a table -----------------------------------------------------------------------------------------


#: Tensors of a layer's posterior, in the order of its fields.
PARTS = ("mean", "input_basis", "input_values", "output_basis", "output_values")


def to_plain(posterior: TablePosterior, encodings: Sequence[Encoding]) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """What a header says of it, and its tensors."""
    tensors: dict[str, Tensor] = {}
    for number, stack in enumerate(posterior.stacks):
        tensors |= {f"{number}/{name}": value for name, value in stack.tensors().items()}
    for number, encoding in enumerate(encodings):
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
        "by_precision": posterior.by_precision,
        "heaps": list(posterior.heaps),
        "row_noise_sees": 0 if row_noise is None else row_noise.sees,
        "row_noise_rows": [{"near": e.n_near, "inputs": e.n_inputs} for e in encodings[len(posterior.stacks) :]],
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
        encodings.append(_encoding(tensors, number, stack.layer_sizes[0], stack.near, stack.waves))
    row_noise = None
    if meta["row_noise_gain"] is not None:
        gain, sees = meta["row_noise_gain"], meta.get("row_noise_sees", 0)
        row_noise = RowNoise([on["row_noise/0"], on["row_noise/1"]], on["row_noise/unit"], gain, sees)
    for rows in meta.get("row_noise_rows", []):
        encodings.append(_encoding(tensors, len(encodings), rows["inputs"], rows["near"]))
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
        meta.get("by_precision", False),
        tuple(meta.get("heaps", ())),
    )
    return posterior, encodings


def _encoding(tensors: Mapping[str, Tensor], number: int, n_inputs: int, n_near: int, n_waves: int = 0) -> Encoding:
    names = ("counts", "edges", *(near_rows.PARTS if n_near else ()))
    found = Encoding.from_arrays({name: np.asarray(tensors[f"{number}/{name}"]) for name in names}, n_waves)
    if found.n_inputs != n_inputs:
        raise SchemaError("its bins or near rows are not those of its networks")
    return found
