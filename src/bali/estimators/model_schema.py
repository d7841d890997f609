"""What a model file holds, name by name: its type and bounds, and shapes in terms of its recipe.

Bounds are wide. They keep out what would ask for any memory or time, or could only give nonsense.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, get_args

import torch
from torch import Tensor

from bali.estimators.recipe import LIKELIHOODS, Recipe
from bali.inference.schema import (
    ANYTHING,
    COUNT,
    GENERATORS,
    NOTHING,
    POSITIVE,
    RATE,
    REAL,
    Check,
    Choice,
    Either,
    ListOf,
    MapOf,
    Number,
    Record,
    SchemaError,
    TensorCheck,
    Text,
    Truth,
    check_tensors,
)
from bali.inference.settings import Reparam
from bali.layers.activations import ACTIVATIONS

WIDTH = Number(1, 1e7, whole=True)
FLAG = Either(Truth(), Number(-1000, 1000, whole=True))  # as users write them
_ACTIVATION, _REPARAM = Choice(tuple(ACTIVATIONS)), Choice(get_args(Reparam))

#: Of the estimators, as the user gave them.
PARAMETERS = Record(
    {
        "hidden_layer_sizes": Either(NOTHING, ListOf(WIDTH)),
        "activation": _ACTIVATION,
        "step_size": POSITIVE,
        "ema_rate": Either(NOTHING, RATE),
        "prior_variance": Either(NOTHING, POSITIVE, ListOf(POSITIVE, least=1)),
        "noise_floor": POSITIVE,
        "output_noise_floor": POSITIVE,
        "effective_size": Either(NOTHING, POSITIVE),
        "reparam": _REPARAM,
        "target_noise": FLAG,
        "batch_size": Number(1, 1e15),
        "max_iter": Either(NOTHING, Number(1, 1e15)),
        "early_stopping": FLAG,
        "validation_fraction": RATE,
        "n_iter_no_change": Either(NOTHING, Number(1, 1e15)),
        "n_members": Either(NOTHING, Number(1, 1e6)),
        "n_samples": Number(1, 1e6),
        "warm_start": FLAG,
        "random_state": Either(NOTHING, COUNT),
        "device": Text(r"[a-z]{1,20}(:\d{1,3})?"),
        "verbose": FLAG,
    }
)

PLAN = Record(
    {
        "max_steps": COUNT,
        "batch_size": COUNT,
        "ema_rate": RATE,
        "phase_ends": ListOf(RATE),
        "decay": RATE,
        "momentum": RATE,
        "averaging": RATE,
        "warm_up": RATE,
        "check_every": COUNT,
        "check_growth": POSITIVE,
        "patience": COUNT,
        "tolerance": POSITIVE,
        "last_gain": POSITIVE,
        "n_samples": COUNT,
    }
)

RECIPE = Record(
    {
        "likelihood": Choice(tuple(LIKELIHOODS)),
        "layer_sizes": ListOf(WIDTH, least=2),
        "activation": _ACTIVATION,
        "dtype": Choice(("float32", "float64")),
        "seed": Number(0, 2**32, whole=True),
        "n_rows": Number(0.0, 1e15),
        "n_members": WIDTH,
        "prior_variances": ListOf(POSITIVE, least=1),
        "initial_variances": ListOf(POSITIVE, least=1),
        "linear": ListOf(Truth(), least=1),
        "unit_variances": ListOf(POSITIVE, least=1),
        "prior_widening": ListOf(POSITIVE, least=1),
        "step_size": POSITIVE,
        "stream_rate": RATE,
        "noise_floor": POSITIVE,
        "output_noise_floor": POSITIVE,
        "effective_size": POSITIVE,
        "reparam": _REPARAM,
        "target_noise": Truth(),
        "shares_held_out_rows": Truth(),
        "plan": PLAN,
    }
)

#: How far the inference is, beside its tensors. Its settings are the recipe's.
PROGRESS = Record(
    {
        "steps": Number(1, 1e15, whole=True),
        "ema_weight": RATE,
        "ema_squares": RATE,
        "repairs": Record({"count": MapOf(COUNT), "largest": MapOf(Number(0.0, 1e300))}),
    }
)

INPUTS: dict[str, Check] = {"n_features_in_": WIDTH, "feature_names_in_": ListOf(Text())}
REGRESSION: dict[str, Check] = {"n_outputs_": WIDTH, "_y_is_1d": Truth()}
_LABEL = Either(Text(), Truth(), Number(-1e300, 1e300))
CLASSIFICATION: dict[str, Check] = {
    "classes_": Record({"values": ListOf(_LABEL, least=2), "dtype": Text(r"[<>|=]([iu][1248]|f[248]|b1|U\d{1,5}|O)")}),
    "temperature_": Number(1e-3, 1e3),
}
NOISE: dict[str, Check] = {"noise_scale_": Number(1e-6, 1e6), "noise_dof_": Either(NOTHING, Number(2.0, 1e6))}
COURSE: dict[str, Check] = {
    "n_iter_": COUNT,
    "best_iter_": COUNT,
    "loss_curve_": ListOf(REAL),
    "validation_steps_": ListOf(COUNT),
    "validation_scores_": ListOf(REAL),
}


@dataclass(frozen=True)
class FileSchema:
    """What the file of one kind of estimator holds, see `estimator_files`."""

    fitted: Mapping[str, Check]  # attributes that are plain values
    arrays: tuple[str, ...]  # attributes that are arrays
    parameters: Check = ANYTHING
    state: Check = ANYTHING
    tensors: Callable[[Mapping[str, Any]], dict[str, TensorCheck]] | None = None  # of a file with such a header

    def check(self, meta: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> None:
        """The header first, then whether the tensors are those that it speaks of."""
        fitted = Record(self.fitted, optional=["feature_names_in_"])
        fields = {"class": Text(), "parameters": self.parameters, "fitted": fitted, "state": self.state}
        Record(fields | {"extra": MapOf(ANYTHING)})(meta, "header")
        if self.tensors is not None:
            check_tensors(tensors, self.tensors(meta))


def _tensors(meta: Mapping[str, Any]) -> dict[str, TensorCheck]:
    """Those of a model with the header `meta`, which was checked."""
    recipe = Recipe.from_json(meta["state"]["recipe"])
    n_in, n_out, k = recipe.layer_sizes[0], recipe.layer_sizes[-1], recipe.stack_size
    fitted = meta["fitted"]
    classes = fitted["classes_"]["values"] if "classes_" in fitted else None
    outputs = ("gaussian", fitted["n_outputs_"]) if classes is None else ("categorical", len(classes))
    names = len(fitted.get("feature_names_in_", range(n_in)))
    if (fitted["n_features_in_"], names, *outputs) != (n_in, n_in, recipe.likelihood, n_out):
        raise SchemaError("its recipe is for other inputs or outputs")
    real, own = torch.float64, getattr(torch, recipe.dtype)
    found = {
        "state/generator": TensorCheck(torch.uint8, GENERATORS),
        "input_scaling_": TensorCheck(real, [(5, n_in)], positive=slice(1, None, 3)),  # its two rows of scales
    }
    if recipe.likelihood == "gaussian":
        found["target_mean_"] = TensorCheck(real, [(n_out,)])
        found["target_scale_"] = TensorCheck(real, [(n_out,)], positive=slice(None))
    for name, d, o in zip(recipe.layer_names, recipe.layer_sizes, recipe.layer_sizes[1:], strict=False):
        rows, columns, maps = ((k, a, b) for a, b in ((d + 1, d + 1), (o, o), (d + 1, o)))
        found |= {
            f"state/{name}/weights": TensorCheck(own, [maps]),
            f"state/{name}/mean": TensorCheck(real, [maps]),
            # Members may share one matrix, of inputs or of outputs that are the same for all.
            f"state/{name}/precision": TensorCheck(real, [rows, rows[1:]], positive_diagonal=True),
            f"state/{name}/scale": TensorCheck(real, [columns, columns[1:]], positive_diagonal=True),
            f"state/{name}/mean_squared_gradient": TensorCheck(real, [(k, o)], optional=True),
        }
    return found


def _bali(fitted: dict[str, Check], *arrays: str) -> FileSchema:
    state = Record({"recipe": RECIPE, "progress": PROGRESS})
    return FileSchema(INPUTS | COURSE | fitted, ("input_scaling_", *arrays), PARAMETERS, state, _tensors)


BALI_REGRESSOR = _bali(REGRESSION | NOISE, "target_mean_", "target_scale_")
BALI_CLASSIFIER = _bali(CLASSIFICATION)
