"""The column to predict: which task it makes, and its values as the estimators want them."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from bali.tables.cells import LARGEST, as_numbers, as_text, canonical, first_cell
from bali.tables.column_kinds import kind_of
from bali.tables.errors import TableError, quoted, shown

Task = Literal["regression", "classification"]

#: Whole numbers are classes if there are at most so many different ones, each in many rows on average.
MAX_INTEGER_CLASSES = 20
ROWS_PER_INTEGER_CLASS = 10
_IF_CATEGORY = "--task classification"
_WHOLE_NUMBER = re.compile(r"0|-?[1-9]\d{,17}")


@dataclass(frozen=True)
class Target:
    """What is predicted. `classes` are the labels of a classification as text, whole numbers in their own order."""

    name: str
    task: Task
    classes: tuple[str, ...] = ()

    @property
    def labels(self) -> NDArray[Any]:
        """The classes as the estimator knows them: numbers if they are whole numbers, else text."""
        whole = all(_WHOLE_NUMBER.fullmatch(label) for label in self.classes)
        return np.array([int(label) for label in self.classes] if whole else self.classes)

    def values(self, column: pd.Series) -> NDArray[Any]:
        """Numbers, or the numbers of the classes, of cells that are not missing."""
        if self.task == "regression":
            return as_numbers(column)
        index = pd.Series({label: i for i, label in enumerate(self.classes)})
        codes = as_text(column).map(index)
        if codes.isna().any():
            row, value = first_cell(column, codes.isna())
            raise TableError(
                f"class {shown(canonical(value))} of column {shown(self.name)} in row {row} is not one of the model's "
                f"({quoted(self.classes)})"
            )
        return codes.to_numpy(dtype=np.int64)


def learn_target(column: pd.Series, task: Task | Literal["auto"] = "auto") -> tuple[Target, str]:
    """The target, and a sentence that says why it makes this task."""
    name = str(column.name)
    reason = "as asked for"
    if task == "auto":
        task, reason = _infer(column)
    if task == "regression":
        if kind_of(column, _IF_CATEGORY) != "number" and not _is_truth(column):
            example = str(column.iloc[0])
            raise TableError(
                f"a regression needs numbers, but column {shown(name)} holds {shown(example)}; use --task classification"
            )
        numbers = as_numbers(column)
        if np.ptp(numbers) == 0.0:
            raise TableError(f"column {shown(name)} is {numbers[0]:g} in every row: there is nothing to predict")
        if np.abs(numbers).max() < 1 / LARGEST:
            raise TableError(f"the numbers of column {shown(name)} are below {1 / LARGEST:g}; write them in another unit")
        return Target(name, task), reason
    return Target(name, task, _labels(column)), reason


def _infer(column: pd.Series) -> tuple[Task, str]:
    kind = kind_of(column, _IF_CATEGORY)
    distinct = column.nunique()
    if kind == "date":
        raise TableError(f"column {shown(column.name)} holds dates; to predict them, turn them into a number of days first")
    if kind == "category":
        return "classification", f"{shown(column.name)} holds categories"
    numbers = as_numbers(column)
    whole = bool((numbers == np.round(numbers)).all())
    few = distinct <= MAX_INTEGER_CLASSES and len(numbers) >= ROWS_PER_INTEGER_CLASS * distinct
    if whole and few and distinct > 1:
        return (
            "classification",
            f"{shown(column.name)} has {distinct} different whole numbers; if they are amounts, use --task regression",
        )
    return "regression", f"{shown(column.name)} holds numbers"


def _labels(column: pd.Series) -> tuple[str, ...]:
    labels = sorted(as_text(column).unique())
    if all(_WHOLE_NUMBER.fullmatch(label) for label in labels):
        labels = sorted(labels, key=int)
    if len(labels) < 2:
        raise TableError(
            f"column {shown(column.name)} is {shown(labels[0])} in every row: a classification needs two classes or more"
        )
    if len(labels) > 20 and len(labels) > len(column) / 2:
        raise TableError(
            f"column {shown(column.name)} has {len(labels)} different values in {len(column)} rows, too many to be classes; "
            "use --task regression for numbers, or another --target"
        )
    return tuple(labels)


def _is_truth(column: pd.Series) -> bool:
    return pd.api.types.is_bool_dtype(column.dtype)
