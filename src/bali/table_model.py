"""A model of a table: the estimator, how its columns become numbers, what it predicts, and the record of its training."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from bali import estimator_files
from bali.estimators import BALIEstimator
from bali.files import ModelFileError
from bali.predictive import ClassPredictive, Predictive, RegressionPredictive
from bali.tables import Surprises, TableEncoder, Target

MODEL_FILE = "model.bali"
#: How many numbers a prediction may hold at once: components × rows × outputs.
NUMBERS_AT_ONCE = 2**22


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
        return self.estimator.pred_dist(self.encoder.transform(frame, surprises))

    def save(self, path: str | os.PathLike[str]) -> None:
        table = {
            "columns": self.encoder.to_json(),
            "target": self.target.name,
            "task": self.target.task,
            "classes": list(self.target.classes),
        }
        estimator_files.save(self.estimator, path, {"table": table, "record": self.record})


def load_table_model(path: str | os.PathLike[str]) -> TableModel:
    """The model in a file, or in a folder that `bali fit` wrote. Reading it executes nothing."""
    path = model_path(path)
    try:
        estimator, extra = estimator_files.load_with_extra(path)
    except ModelFileError:
        raise
    except (KeyError, TypeError, ValueError) as error:
        raise ModelFileError(
            f"{str(path)!r} is damaged or was written by another version of bali ({error}); train the model again"
        ) from error
    if "table" not in extra:
        raise ModelFileError(
            f"{str(path)!r} was saved from Python and does not know the columns of a table; use bali.load, or `bali fit`"
        )
    table = extra["table"]
    target = Target(table["target"], table["task"], tuple(table["classes"]))
    return TableModel(estimator, TableEncoder.from_json(table["columns"]), target, extra["record"])


def model_path(path: str | os.PathLike[str]) -> Path:
    path = Path(path)
    if not path.exists():
        raise ModelFileError(f"no model at {str(path)!r}")
    if path.is_dir():
        if not (path / MODEL_FILE).is_file():
            raise ModelFileError(f"the folder {str(path)!r} holds no {MODEL_FILE}; `bali fit` writes one")
        path = path / MODEL_FILE
    return path


def prediction_columns(predictive: Predictive, target: Target, coverage: float) -> dict[str, NDArray[Any]]:
    """What is written about each row.

    Regression: std² = epistemic_std² + aleatoric_std², all in the units of the target. Classification: entropy =
    epistemic + aleatoric, in nats.
    """
    if isinstance(predictive, RegressionPredictive):
        low, high = predictive.interval(coverage)
        parts = {
            "mean": predictive.mean,
            "std": predictive.std,
            "lower": low,
            "upper": high,
            "epistemic_std": predictive.epistemic.sqrt(),
            "aleatoric_std": predictive.aleatoric.sqrt(),
        }
        return {name: part[:, 0].double().cpu().numpy() for name, part in parts.items()}
    assert isinstance(predictive, ClassPredictive)
    p = predictive.probabilities.double().cpu().numpy()
    columns: dict[str, NDArray[Any]] = {"class": np.array(target.classes, dtype=object)[p.argmax(1)]}
    columns |= {f"probability_{label}": p[:, i] for i, label in enumerate(target.classes)}
    parts = {
        "entropy": predictive.entropy,
        "epistemic": predictive.mutual_information,
        "aleatoric": predictive.aleatoric,
    }
    return columns | {name: part.double().cpu().numpy() for name, part in parts.items()}
