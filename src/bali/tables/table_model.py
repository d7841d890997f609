"""A model of a table: the estimator, how its columns become numbers, what it predicts, and the record of its training."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

import pandas as pd

from bali.estimators import BALIEstimator, estimator_files
from bali.estimators.input_scaling import OutOfReachError
from bali.estimators.loading import load_with_extra
from bali.estimators.model_schema import COLUMN
from bali.files import DAMAGED, ModelFileError, refusing, settle
from bali.inference.schema import ANYTHING, NOTHING, Choice, Either, ListOf, MapOf, Number, Record, SchemaError, Text
from bali.predictive.mixtures import Predictive
from bali.tables.encoder import Surprises, TableEncoder
from bali.tables.errors import TableError, shown
from bali.tables.record_schema import check_record
from bali.tables.target_column import Target, Task

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


def load_table_model(path: str | os.PathLike[str]) -> TableModel:
    """The model in a file, or in a folder that `bali fit` wrote. Reading it executes nothing."""
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
