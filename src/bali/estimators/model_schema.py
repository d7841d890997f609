"""What a model file holds, name by name: its type and bounds, and shapes in terms of its recipe.

Bounds are wide. They keep out what would ask for any memory or time, or could only give nonsense.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, get_args

import torch
from torch import Tensor

from bali.estimators.encodings import N_PLACES
from bali.estimators.frame_columns import Kind, column_names, columns_from_json
from bali.estimators.near_rows import PARTS as NEAR
from bali.estimators.recipe import CHOICES, LIKELIHOODS, Recipe
from bali.inference.prediction import MOST_SAMPLES
from bali.inference.schema import (
    ANYTHING,
    COUNT,
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
    largest,
)
from bali.layers.modules import ACTIVATIONS
from bali.training.table_calibration import MOST_COUNTS
from bali.training.table_posterior import MEMBERS as ROW_NOISE_MEMBERS
from bali.training.table_posterior import WIDTH as ROW_NOISE_WIDTH

WIDTH = Number(1, 1e7, whole=True)
FLAG = Either(Truth(), Number(-1000, 1000, whole=True))  # as users write them
_ACTIVATION = Choice(tuple(ACTIVATIONS))
#: Far more than are ever tried for a table.
_MOST_STACKS = 100
_POSITIVE_OR_NONE = Either(NOTHING, Number(1, 1e15))

#: Of the estimators, as the user gave them.
PARAMETERS = Record(
    {
        "hidden_layer_sizes": Either(NOTHING, ListOf(WIDTH)),
        "activation": _ACTIVATION,
        "likelihood": Choice((*CHOICES, *LIKELIHOODS)),
        "n_bins": Either(NOTHING, COUNT),
        "near_rows": Either(NOTHING, FLAG),
        "step_size": POSITIVE,
        "prior_variance": POSITIVE,
        "batch_size": _POSITIVE_OR_NONE,
        "max_iter": _POSITIVE_OR_NONE,
        "validation_fraction": Either(NOTHING, RATE),
        "n_members": Either(NOTHING, Number(1, 1e6)),
        "n_samples": Number(1, MOST_SAMPLES),
        "n_jobs": Either(NOTHING, Number(-1, 1e6, whole=True)),
        "warm_start": FLAG,
        "random_state": Either(NOTHING, COUNT),
        "device": Text(r"[a-z]{1,20}(:\d{1,3})?"),
        "verbose": FLAG,
    },
    optional=["near_rows"],
)

COURSE_RULES = Record(
    {
        "n_steps": COUNT,
        "batch_size": COUNT,
        "step_size": POSITIVE,
        "kl_bound": POSITIVE,
        "momentum": RATE,
        "rate": RATE,
        "damping": POSITIVE,
        "prior_variance": POSITIVE,
        "prior_steps": COUNT,
        "least_share": RATE,
        "n_scores": COUNT,
    }
)

_STACK = Record(
    {
        "likelihood": Choice(tuple(LIKELIHOODS)),
        "layer_sizes": ListOf(WIDTH, least=2),
        "prior_variances": ListOf(POSITIVE, least=1),
        "near": COUNT,
        "waves": COUNT,
    },
    optional=["near", "waves"],
)

RECIPE = Record(
    {
        "activation": _ACTIVATION,
        "dtype": Choice(("float32", "float64")),
        "seed": Number(0, 2**32, whole=True),
        "n_rows": Number(0.0, 1e15),
        "n_columns": WIDTH,
        "n_outputs": WIDTH,
        "n_members": WIDTH,
        "n_groups": WIDTH,
        "held_out_share": RATE,
        "hidden": ListOf(WIDTH),
        "bins": ListOf(COUNT, least=1),
        "likelihoods": ListOf(Choice(tuple(LIKELIHOODS)), least=1),
        "course": COURSE_RULES,
        "stacks": ListOf(_STACK, least=1),
        "near_rows": Truth(),
    },
    optional=["near_rows"],
)

POSTERIOR = Record(
    {
        "width": Number(1e-12, 1e3),
        "temperature": Number(1e-3, 1e3),
        "noise_dof": Either(NOTHING, Number(2.5, 1e6)),  # with 2 or fewer there is no variance
        "row_noise_gain": Either(NOTHING, REAL),
        "by_precision": Truth(),
        "heaps": ListOf(Number(1e-3, 1e3)),
        "row_noise_sees": COUNT,
        "row_noise_rows": ListOf(Record({"near": COUNT, "inputs": WIDTH})),
    },
    optional=["by_precision", "heaps", "row_noise_sees", "row_noise_rows"],
)

#: A model of the targets' logarithms beside that of the targets; its tensors' names begin with the second.
_LOGARITHMS = Record({"recipe": RECIPE, "posterior": POSTERIOR, "alone": Truth(), "scores": ListOf(REAL, least=2)})
LOGARITHMS = "logarithms/"

#: What was learnt about a column of X, or of a table.
COLUMN = Record(
    {
        "name": Text(),
        "kind": Choice(get_args(Kind)),
        "has_missing": Truth(),
        "median": Number(-1e300, 1e300),
        "categories": ListOf(Text()),
    }
)
INPUTS: dict[str, Check] = {"n_features_in_": WIDTH, "feature_names_in_": ListOf(Text())}
REGRESSION: dict[str, Check] = {"n_outputs_": WIDTH, "_y_is_1d": Truth()}
_LABEL = Either(Text(), Truth(), Number(-1e300, 1e300))
CLASSIFICATION: dict[str, Check] = {
    "classes_": Record({"values": ListOf(_LABEL, least=2), "dtype": Text(r"[<>|=]([iu][1248]|f[248]|b1|U\d{1,5}|O)")}),
}
COURSE: dict[str, Check] = {
    "candidate_scores_": MapOf(REAL),
    "refused_": COUNT,
    "n_iter_": COUNT,
    "n_seen_": Number(0.0, 1e15),
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
    recipe, fitted = Recipe.from_json(meta["state"]["recipe"]), meta["fitted"]
    n_columns, k = recipe.n_columns, recipe.n_members
    classes = fitted["classes_"]["values"] if "classes_" in fitted else None
    n_outputs = fitted["n_outputs_"] if classes is None else len(classes)
    columns = columns_from_json(meta["state"]["columns"])
    n_given, n_features = len(columns.columns), len(columns.feature_names)
    names = column_names(n_given, fitted.get("feature_names_in_"))
    likelihoods = {stack.likelihood for stack in recipe.stacks}
    is_classifier = likelihoods == {"categorical"}
    known = (n_given, [c.name for c in columns.columns], n_columns, recipe.n_outputs, classes is not None)
    if (fitted["n_features_in_"], names, n_features, n_outputs, is_classifier) != known or len(likelihoods) != 1:
        raise SchemaError("its recipe is for other inputs or outputs")
    real, own = torch.float64, getattr(torch, recipe.dtype)
    found = {"input_scaling_": TensorCheck(real, [(5, n_columns)], positive=slice(1, None, 3))}  # its two rows of scales
    d = recipe.n_outputs
    if not is_classifier:
        found["target_mean_"] = TensorCheck(real, [(d,)])
        found["target_scale_"] = TensorCheck(real, [(d,)], positive=slice(None))
    if likelihoods == {"gaussian"}:
        found["state/noise"] = TensorCheck(real, [(d, d)], positive_diagonal=True)
    else:
        found["state/offset"] = TensorCheck(real, [(recipe.stacks[0].layer_sizes[-1],)])
    if len(meta["state"]["posterior"].get("heaps", ())) > MOST_COUNTS:
        raise SchemaError(f"its posterior has factors of more than {MOST_COUNTS} counts")
    if len(recipe.stacks) > _MOST_STACKS:
        raise SchemaError(f"its recipe has more than {_MOST_STACKS} stacks of networks")
    for number, stack in enumerate(recipe.stacks):
        n_targets = d if classes is None else d - 1
        if len(stack.prior_variances) != len(stack.layer_sizes) - 1:
            raise SchemaError("its recipe has layers without a prior")
        found |= _encoding(number, n_columns, stack.layer_sizes[0], stack.near, n_targets, has_waves=stack.waves > 0)
        for layer, (n_in, n_out) in enumerate(itertools.pairwise(stack.layer_sizes)):
            shapes = {
                "mean": (k, n_in + 1, n_out),
                "input_basis": (k, n_in + 1, n_in + 1),
                "input_values": (k, n_in + 1),
                "output_basis": (k, n_out, n_out),
                "output_values": (k, n_out),
            }
            values = ("input_values", "output_values")
            found |= {
                f"state/{number}/{layer}/{name}": TensorCheck(
                    real, [shape], least=0.0 if name in values else None, most=largest(own)
                )
                for name, shape in shapes.items()
            }
    posterior = meta["state"]["posterior"]
    n_seen = [stack.layer_sizes[0] for stack in recipe.stacks]
    for rows in posterior.get("row_noise_rows", []):
        found |= _encoding(len(n_seen), n_columns, rows["inputs"], rows["near"], d)
        n_seen.append(rows["inputs"])
    sees = posterior.get("row_noise_sees", 0)
    if sees >= len(n_seen):
        raise SchemaError("its noise is of other rows than its networks")
    if posterior["row_noise_gain"] is not None:
        n_in = n_seen[sees] + d
        found["state/row_noise/0"] = TensorCheck(own, [(ROW_NOISE_MEMBERS, n_in + 1, ROW_NOISE_WIDTH)])
        found["state/row_noise/1"] = TensorCheck(own, [(ROW_NOISE_MEMBERS, ROW_NOISE_WIDTH + 1, d)])
        found["state/row_noise/unit"] = TensorCheck(own, [(d,)], positive=slice(None))
    return found


def _encoding(
    number: int, n_columns: int, n_inputs: int, near: int, n_targets: int, *, has_waves: bool = False
) -> dict[str, TensorCheck]:
    """Of a way of seeing rows."""
    real, n_inputs = torch.float64, n_inputs - (3 * n_targets + 1 if near else 0)
    if not n_columns <= n_inputs:
        raise SchemaError("its recipe has layers that do not fit its columns")
    # A column has one edge more than bins, or none at all; of waves, edges tell places.
    least, most = (0, (N_PLACES + 1) * n_columns) if has_waves else (n_inputs - n_columns, n_inputs)
    found = {
        f"state/{number}/counts": TensorCheck(torch.int64, [(n_columns,)], least=0.0),
        f"state/{number}/edges": TensorCheck(real, [(j,) for j in range(least, most + 1)]),
    }
    if not near:
        return found
    m = near
    if m < 2:
        raise SchemaError("its recipe has no near rows")
    of_near: list[tuple[int, ...]] = [(m, n_columns), (m, n_targets), (m,), (n_columns,), (2, 3 * n_targets + 1)]
    positive = {"near_weight": slice(None), "near_moments": slice(1, 2)}
    return found | {
        f"state/{number}/{name}": TensorCheck(real, [shape], positive=positive.get(name), most=1e100)
        for name, shape in zip(NEAR, of_near, strict=True)
    }


def _with_logarithms(meta: Mapping[str, Any]) -> dict[str, TensorCheck]:
    found, logarithms = _tensors(meta), meta["state"].get("logarithms")
    if logarithms is None:
        return found
    recipes = [Recipe.from_json(part["recipe"]) for part in (meta["state"], logarithms)]
    if any(recipe.stacks[0].likelihood != "gaussian" or recipe.n_outputs != 1 for recipe in recipes):
        raise SchemaError("only a single column of numbers has logarithms beside it")
    of_logs = _tensors({"fitted": meta["fitted"], "state": logarithms | {"columns": meta["state"]["columns"]}})
    del of_logs["input_scaling_"]  # both see the same columns
    return found | {f"state/{LOGARITHMS}{name.removeprefix('state/')}": check for name, check in of_logs.items()}


def _bali(fitted: dict[str, Check], *arrays: str) -> FileSchema:
    known: dict[str, Check] = {
        "recipe": RECIPE,
        "posterior": POSTERIOR,
        "columns": ListOf(COLUMN, least=1),
        "logarithms": _LOGARITHMS,
    }
    state = Record(known, optional=["logarithms"])
    return FileSchema(INPUTS | COURSE | fitted, ("input_scaling_", *arrays), PARAMETERS, state, _with_logarithms)


BALI_REGRESSOR = _bali(REGRESSION, "target_mean_", "target_scale_")
BALI_CLASSIFIER = _bali(CLASSIFICATION)
