"""A model of a table: the estimator, how its columns become numbers, what it predicts, and the record of its training."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

import pandas as pd
from sklearn.exceptions import ConvergenceWarning

from bali.conjugate.linalg import NumericalRepairWarning
from bali.estimators import BALIEstimator, estimator_files
from bali.estimators.input_scaling import OutOfReachError
from bali.estimators.loading import load_with_extra
from bali.estimators.model_schema import COLUMN
from bali.files import DAMAGED, ModelFileError, refusing, settle
from bali.inference.health import HealthWarning
from bali.inference.schema import (
    ANY_NUMBER,
    ANYTHING,
    COUNT,
    NOTHING,
    RATE,
    Check,
    Choice,
    Either,
    ListOf,
    MapOf,
    Number,
    Record,
    SchemaError,
    Text,
    Truth,
)
from bali.predictive.mixtures import Predictive
from bali.tables.cells import Kind, Surprises, TableEncoder
from bali.tables.errors import TableError, shown
from bali.tables.target_column import Target, Task

# --- what a record may be: the report is made from it, and files come from anywhere -----------------------------------


_VALUE = Number(-1e150, 1e150)  # whose square is a number
_SQUARE = Number(0.0, 1e300)
_NATS = Number(-1.0, 1e6)  # an entropy, up to rounding
_ROW = {"row": ListOf(Either(NOTHING, Truth(), ANY_NUMBER, Text()))}
_PIT = {"pit": ListOf(RATE)}
_REGRESSION = _ROW | _PIT | {name: ListOf(_VALUE) for name in ("y", "mean", "low", "high")}
_REGRESSION |= {"std": ListOf(Number(1e-300, 1e150)), "epistemic": ListOf(_SQUARE), "aleatoric": ListOf(_SQUARE)}
_DURATIONS = _ROW | _PIT | {name: ListOf(_SQUARE) for name in ("y", "median", "low", "high")} | {"event": ListOf(RATE)}
_SHARES = ListOf(RATE)
_CHECKS = Record(
    {
        "rootogram": Record({name: ListOf(_SQUARE, least=1) for name in ("at", "expected", "observed")}),
        "survival": Record(
            {
                "times": ListOf(_SQUARE),
                "groups": ListOf(Record({"rows": COUNT, "predicted": _SHARES, "observed": _SHARES}), least=1),
            }
        ),
    },
    optional=["rootogram", "survival"],
)
_CURVE = ListOf(_VALUE, least=2)
_EFFECT = Record(
    {
        "name": Text(),
        "kind": Choice(get_args(Kind)),
        "importance": _VALUE,
        "error": _VALUE,
        "at": Either(_CURVE, ListOf(Text(), least=2)),
        **dict.fromkeys(("mean", "low", "high", "noise"), _CURVE),
        "class": Text(),
    },
    optional=["noise", "class"],
)
_RANGE = Record({"start": Text(), "low": _VALUE, "high": _VALUE}, optional=["start", "low", "high"])


def check_record(record: Any, target: Target, place: str) -> None:
    """Raises a `SchemaError` if it is not one that `bali fit` of this target makes."""
    by_task = {"classification": _of_classes(list(target.classes)), "durations": _DURATIONS}
    holdout = by_task.get(target.task, _REGRESSION)
    fields: dict[str, Check] = {
        "target": Choice([target.name]),
        "task": Choice([target.task]),
        "source": Text(),
        "features": ListOf(Text()),
        "notes": ListOf(Text()),
        "n_rows": COUNT,
        "n_train": COUNT,
        "n_holdout": COUNT,
        "seconds": Number(0.0, 1e12),
        "bali_version": Text(),
        "metrics": MapOf(ANY_NUMBER),
        "holdout": Either(Record({}), Record(holdout)),
        "checks": _CHECKS,
        "columns": ListOf(_EFFECT),
        "inputs": MapOf(_RANGE),
    }
    Record(fields, optional=["checks", "columns", "inputs"])(record, place)
    for number, effect in enumerate(record.get("columns", [])):
        if len({len(effect[name]) for name in ("at", "mean", "low", "high", "noise") if name in effect}) > 1:
            raise SchemaError(f"{place}.columns[{number}] has points and curves of different length")
    checks = record.get("checks", {})
    survival = checks.get("survival", {"times": [], "groups": []})
    curves = [group[name] for group in survival["groups"] for name in ("predicted", "observed")]
    bars = checks.get("rootogram", {})
    if any(len(curve) != len(survival["times"]) for curve in curves) or len({len(bar) for bar in bars.values()}) > 1:
        raise SchemaError(f"{place}.checks has curves of different length")
    columns = {name: len(column) for name, column in record["holdout"].items() if name != "classes"}
    if len({*columns.values(), min(record["n_holdout"], max(columns.values(), default=0))}) > 1:
        raise SchemaError(
            f"{place}.holdout has columns of {sorted(columns.values())} rows, and {record['n_holdout']} were held out"
        )


def _of_classes(classes: list[str]) -> dict[str, Any]:
    def all_classes(value: Any, place: str) -> None:
        ListOf(RATE, least=len(classes))(value, place)
        if len(value) > len(classes):
            raise SchemaError(f"{place} has {len(value)} probabilities of {len(classes)} classes")

    return _ROW | {
        "y": ListOf(Number(0, len(classes) - 1, whole=True)),
        "probabilities": ListOf(all_classes),
        "entropy": ListOf(_NATS),
        "mutual_information": ListOf(_NATS),
        "classes": lambda value, place: Choice([classes])(value, place),
    }


# --- warnings that are meant for the user of a model ------------------------------------------------------------------


_FOR_USERS = (ConvergenceWarning, HealthWarning, NumericalRepairWarning)


@contextmanager
def noted_warnings() -> Iterator[list[str]]:
    """A list that holds, afterwards, what the estimators warned of, each once. Other warnings go their usual way."""
    notes: list[str] = []
    with warnings.catch_warnings(record=True) as caught:
        for category in _FOR_USERS:
            warnings.simplefilter("always", category)
        yield notes
    for warning in caught:
        if issubclass(warning.category, _FOR_USERS):
            sentence = " ".join(str(warning.message).split())
            if sentence not in notes:
                notes.append(sentence)
        else:
            warnings.warn_explicit(warning.message, warning.category, warning.filename, warning.lineno)


# --- the model --------------------------------------------------------------------------------------------------------


MODEL_FILE = "model.bali"
#: How many numbers a prediction may hold at once: components × rows × outputs.
NUMBERS_AT_ONCE = 2**22
_TABLE = Record(
    {
        "columns": ListOf(COLUMN, least=1),
        "target": Text(),
        "task": Choice(get_args(Task)),
        "classes": ListOf(Text()),
        "event": Either(NOTHING, Text()),
        "times": ListOf(Number(0.0, 1e150)),
    }
)
_EXTRA = Record({"table": _TABLE, "record": MapOf(ANYTHING)})


@dataclass(frozen=True)
class TableModel:
    estimator: BALIEstimator
    encoder: TableEncoder
    target: Target
    record: dict[str, Any]

    @property
    def columns(self) -> list[str]:
        """The columns a file must have to be predicted."""
        return [column.name for column in self.encoder.columns]

    @property
    def text_columns(self) -> list[str]:
        """Those that are read as they are written."""
        return [column.name for column in self.encoder.categorical]

    @property
    def rows_at_once(self) -> int:
        """How many rows to predict in one go, so that memory is bounded whatever the length of the file."""
        numbers_per_row = self.estimator.n_samples * max(len(self.target.classes), 1)
        return min(max(NUMBERS_AT_ONCE // numbers_per_row, 64), 8192)

    def predictive(self, frame: pd.DataFrame, surprises: Surprises | None = None) -> Predictive:
        """The predictive distribution of some rows, at best not many more than `rows_at_once`."""
        features = self.encoder.transform(frame, surprises)
        try:
            return self.estimator.pred_dist(features)
        except OutOfReachError as error:
            raise TableError(
                f"column {shown(features.columns[error.column])} is {error.value:.3g} in row {features.index[error.row]}, "
                "too far from the training rows for a prediction; correct that cell, or leave it empty if it is not known"
            ) from error

    def save(self, path: str | os.PathLike[str]) -> None:
        table = {
            "columns": self.encoder.to_json(),
            "target": self.target.name,
            "task": self.target.task,
            "classes": list(self.target.classes),
            "event": self.target.event,
            "times": list(self.target.times),
        }
        with refusing(path, "cannot be written"):  # what is written can be read
            check_record(self.record, self.target, "record")
        estimator_files.save(self.estimator, path, {"table": table, "record": self.record})


def load_table_model(path: str | os.PathLike[str], n_samples: int | None = None) -> TableModel:
    """The model in a file, or in a folder that `bali fit` wrote. Reading it executes nothing.

    With `n_samples` it predicts from so many weight samples, by default from as many as it was trained to.
    """
    path = model_path(path)
    estimator, extra = load_with_extra(path)
    with refusing(path, *DAMAGED):
        if "table" not in extra:
            raise ModelFileError(
                "was saved from Python and does not know the columns of a table; use bali.load, or `bali fit`"
            )
        _EXTRA(extra, "header.extra")
        table = extra["table"]
        encoder = TableEncoder.from_json(table["columns"])
        times = tuple(float(t) for t in table["times"])
        target = Target(table["target"], table["task"], tuple(table["classes"]), table["event"], times)
        if (target.task == "durations") != (target.event is not None) or list(times) != sorted(times):
            raise SchemaError("its target is not one of its task")
        check_record(extra["record"], target, "header.extra.record")
        outputs = list(target.labels) if target.task == "classification" else []
        if outputs != list(getattr(estimator, "classes_", [])) or encoder.feature_names != list(estimator.feature_names_in_):
            raise SchemaError("its columns or classes are not those of its model")
    if n_samples is not None:
        estimator.set_params(n_samples=n_samples)
    return TableModel(estimator, encoder, target, extra["record"])


def model_path(path: str | os.PathLike[str]) -> Path:
    path = Path(path)
    settle(path.parent if path.name == MODEL_FILE else path)
    if not path.exists():
        raise ModelFileError(f"no model at {str(path)!r}")
    if path.is_dir():
        if not (path / MODEL_FILE).is_file():
            raise ModelFileError(f"the folder {str(path)!r} holds no {MODEL_FILE}; `bali fit` writes one")
        path = path / MODEL_FILE
    return path
