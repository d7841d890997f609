"""The column to predict: which task it makes, and its values as the estimators want them."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from bali.estimators.second_models import look_like_counts
from bali.tables.cells import LARGEST, as_numbers, as_text, canonical, first_cell, kind_of
from bali.tables.errors import TableError, quoted, shown

Task = Literal["regression", "classification", "counts", "durations"]

#: Whole numbers are classes if there are at most so many different ones, each in many rows on average.
MAX_INTEGER_CLASSES = 20
ROWS_PER_INTEGER_CLASS = 10
#: Of the times of the training rows: ends of what durations are scored on, and between them where survival is told.
_TIMES = (0.05, 0.25, 0.5, 0.75, 0.8)
_IF_CATEGORY = "--task classification"
_WHOLE_NUMBER = re.compile(r"0|-?[1-9]\d{,17}")


@dataclass(frozen=True)
class Target:
    """What is predicted. `classes` are the labels of a classification as text, whole numbers in their own order.

    Of durations, `name` is the column of times, `event` the column that says whether it was over then, and `times` are some
    that matter, rising.
    """

    name: str
    task: Task
    classes: tuple[str, ...] = ()
    event: str | None = None
    times: tuple[float, ...] = ()

    @property
    def columns(self) -> list[str]:
        """Those that hold it."""
        return [self.name] if self.event is None else [self.name, self.event]

    @property
    def survival_times(self) -> list[float]:
        """Where survival is told unless the user says otherwise."""
        return list(dict.fromkeys(self.times[1:-1]))

    @property
    def labels(self) -> NDArray[Any]:
        """The classes as the estimator knows them: numbers if they are whole numbers, else text."""
        whole = all(_WHOLE_NUMBER.fullmatch(label) for label in self.classes)
        return np.array([int(label) for label in self.classes] if whole else self.classes)

    def values(self, column: pd.Series, events: pd.Series | None = None) -> NDArray[Any]:
        """Numbers, numbers of classes, or (n, 2) times and events, of cells that are not missing."""
        if self.task == "regression":
            return as_numbers(column)
        if self.task == "counts":
            return _counts(column)
        if self.task == "durations":
            assert events is not None
            return np.column_stack([_times(column), _events(events)])
        index = pd.Series({label: i for i, label in enumerate(self.classes)})
        codes = as_text(column).map(index)
        if codes.isna().any():
            row, value = first_cell(column, codes.isna())
            raise TableError(
                f"class {shown(canonical(value))} of column {shown(self.name)} in row {row} is not one of the model's "
                f"({quoted(self.classes)})"
            )
        return codes.to_numpy(dtype=np.int64)


def learn_target(
    column: pd.Series, task: Task | Literal["auto"] = "auto", events: pd.Series | None = None
) -> tuple[Target, str]:
    """The target, and a sentence that says why it makes this task. With events, it is a duration."""
    name = str(column.name)
    if events is not None:
        return _durations(column, events)
    reason = "as asked for"
    if task == "auto":
        task, reason = _infer(column)
    if task in ("regression", "counts"):
        if kind_of(column, _IF_CATEGORY) != "number" and not _is_truth(column):
            example = str(column.iloc[0])
            raise TableError(
                f"{'a regression needs' if task == 'regression' else 'counts need to be'} numbers, but column {shown(name)} "
                f"holds {shown(example)}; use --task classification"
            )
        numbers = as_numbers(column) if task == "regression" else _counts(column)
        if np.ptp(numbers) == 0.0:
            raise TableError(f"column {shown(name)} is {numbers[0]:g} in every row: there is nothing to predict")
        if np.abs(numbers).max() < 1 / LARGEST:
            raise TableError(f"the numbers of column {shown(name)} are below {1 / LARGEST:g}; write them in another unit")
        return Target(name, task), reason
    return Target(name, task, _labels(column)), reason


def _durations(column: pd.Series, events: pd.Series) -> tuple[Target, str]:
    times, over = _times(column), _events(events)
    if not over.any():
        raise TableError(
            f"column {shown(events.name)} is 0 in every row: nothing was over, so nothing can be learned about when"
        )
    target = Target(str(column.name), "durations", (), str(events.name), tuple(np.quantile(times, _TIMES).tolist()))
    return target, f"over in {int(over.sum()):,} rows, by {shown(events.name)}; not over yet in {int((over == 0).sum()):,}"


def _counts(column: pd.Series) -> NDArray[np.float64]:
    numbers = as_numbers(column)
    _refuse(column, (numbers < 0) | (numbers != np.round(numbers)), "counts are 0, 1, 2, …", "use --task regression")
    return numbers


def _times(column: pd.Series) -> NDArray[np.float64]:
    numbers = as_numbers(column)
    _refuse(column, ~(numbers > 0), "durations must be above 0", "correct that cell, or leave the row out")
    return numbers


def _events(column: pd.Series) -> NDArray[np.float64]:
    """0 and 1, however they are spelled."""
    found = as_text(column).map({"0": 0.0, "1": 1.0, "False": 0.0, "True": 1.0})
    _refuse(
        column, found.isna().to_numpy(), "events must be 1 where it was over and 0 where it was not over yet", "correct it"
    )
    return np.asarray(found, dtype=np.float64)


def _refuse(column: pd.Series, wrong: NDArray[np.bool_], rule: str, remedy: str) -> None:
    if wrong.any():
        row, value = first_cell(column, pd.Series(wrong, index=column.index))
        raise TableError(f"column {shown(column.name)} is {shown(value)} in row {row}, but {rule}; {remedy}")


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
            f"{shown(column.name)} has {distinct} different whole numbers; if they are amounts, use --task regression "
            "or counts",
        )
    if look_like_counts(numbers):
        return (
            "counts",
            f"{shown(column.name)} holds whole numbers from {numbers.min():g} to {numbers.max():,.0f}, more small ones than "
            "large; if they are not counts, use --task regression",
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
