"""What a model says when its inputs change: one row, and one column of it moved while the others stay."""

from __future__ import annotations

import datetime
import math
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray

from bali.predictive.mixtures import ClassPredictive, Predictive
from bali.tables.cells import MISSING, Column, Kind, Surprises, TableEncoder, as_text, numeric_cells
from bali.tables.errors import TableError, quoted, shown
from bali.tables.table_model import TableModel

#: Points of a curve.
N_POINTS = 41
#: Of a column of numbers, what lies between these quantiles is where it can be moved.
_ENDS = (0.01, 0.99)
COVERAGE = 0.9
Row = Mapping[str, float | str | None]
#: Prediction is not made for several threads at once.
_ONE_AT_A_TIME = threading.Lock()


class Input(NamedTuple):
    """A column as a control: where it can be moved and where it starts."""

    name: str
    kind: Kind
    start: float | str | None
    low: float | None = None  # numbers and dates (in days), where it is known
    high: float | None = None
    categories: tuple[str, ...] = ()


def learn_ranges(frame: pd.DataFrame, encoder: TableEncoder) -> dict[str, Any]:
    """What a model's record keeps of the training rows for this: ends of numbers, the most frequent category."""
    found: dict[str, Any] = {}
    for column in encoder.columns:
        if column.kind == "category":
            counts = as_text(frame[column.name]).fillna(MISSING).value_counts()
            found[column.name] = {"start": str(counts.index[0])}
        else:
            cells = numeric_cells(frame[column.name], column.kind)
            if np.isfinite(cells).any():
                low, high = np.nanquantile(cells, _ENDS)
                found[column.name] = {"low": float(low), "high": float(high)}
    return found


def inputs_of(model: TableModel) -> list[Input]:
    """Models of earlier versions do not know their ranges; then there are no ends."""
    kept = model.record.get("inputs")
    ranges = kept if isinstance(kept, dict) else {}
    return [_input(column, ranges.get(column.name)) for column in model.encoder.columns]


def _input(column: Column, known: object) -> Input:
    range_ = known if isinstance(known, dict) else {}
    if column.kind == "category":
        start = range_.get("start")
        start = start if start in column.categories else column.categories[0]
        return Input(column.name, column.kind, start, categories=tuple(column.categories))
    low, high = range_.get("low"), range_.get("high")
    start = day(column.median) if column.kind == "date" else column.median
    if not (isinstance(low, int | float) and isinstance(high, int | float) and -math.inf < low < high < math.inf):
        return Input(column.name, column.kind, start)
    return Input(column.name, column.kind, start, float(low), float(high))


def typical_row(model: TableModel) -> dict[str, float | str | None]:
    """Medians and most frequent categories."""
    return {each.name: each.start for each in inputs_of(model)}


def day(number: float) -> str:
    """Days since 1970 as 2024-05-31."""
    earliest, latest = datetime.date.min.toordinal(), datetime.date.max.toordinal()
    first = datetime.date(1970, 1, 1).toordinal()
    return datetime.date.fromordinal(min(max(first + math.floor(number), earliest), latest)).isoformat()


def checked_row(model: TableModel, values: object) -> dict[str, float | str | None]:
    """A row from what somebody sent: an object with a number, a text or null for each column."""
    if not isinstance(values, dict):
        raise TableError("a row is an object with a value for each column")
    unknown = [name for name in values if name not in model.columns]
    absent = [name for name in model.columns if name not in values]
    if unknown:
        raise TableError(f"the model has no column {quoted(unknown)}; its columns are {quoted(model.columns, 12)}")
    if absent:
        raise TableError(f"a value of {quoted(absent)} is missing; null says that it is not known")
    return {column.name: _checked(column, values[column.name]) for column in model.encoder.columns}


def _checked(column: Column, value: object) -> float | str | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise TableError(f"column {shown(column.name)} needs a number, a text or null")
    if column.kind == "number":
        if isinstance(value, str):
            raise TableError(f"column {shown(column.name)} holds numbers, and {shown(value)} is none")
        if not math.isfinite(value):
            raise TableError(f"column {shown(column.name)} needs a finite number")
        return float(value)
    return str(value)


def row_of(model: TableModel, frame: pd.DataFrame) -> dict[str, float | str | None]:
    """The first row of a table that was read, checked as the cells of any other."""
    row: dict[str, float | str | None] = {}
    for column in model.encoder.columns:
        if column.kind == "category":
            text = as_text(frame[column.name]).iloc[0]
            row[column.name] = None if pd.isna(text) else str(text)
        else:
            cell = float(numeric_cells(frame[column.name], column.kind)[0])
            row[column.name] = None if math.isnan(cell) else day(cell) if column.kind == "date" else cell
    return row


def predict_rows(model: TableModel, rows: list[Row]) -> tuple[Predictive, list[str]]:
    """The prediction, and what is to be said about cells that the training rows never had."""
    texts = {c.name for c in model.encoder.columns if c.kind != "number"}
    frame = pd.DataFrame(
        {
            name: pd.Series([row[name] for row in rows], dtype=object if name in texts else "float64")
            for name in model.columns
        }
    )
    frame.index += 1
    surprises = Surprises()
    with _ONE_AT_A_TIME, torch.no_grad():
        predictive = model.predictive(frame, surprises)
    return predictive, surprises.notes()


@dataclass(frozen=True)
class Sweep:
    """Predictions along one column. For classes `mean` is (points, classes), and there are no bounds."""

    column: Input
    at: list[float] | list[str]  # dates in days
    mean: NDArray[np.float64]
    low: NDArray[np.float64] | None = None
    high: NDArray[np.float64] | None = None


def sweep(model: TableModel, row: Row, column: Input) -> Sweep:
    """The others as in `row`. Of numbers without known ends there is a single point."""
    here = row[column.name]
    at: list[Any]
    if column.kind == "category":
        at = list(column.categories)
        cells: list[Any] = [None if value == MISSING else value for value in at]
    elif column.low is None or column.high is None:
        at = [] if not isinstance(here, float) else [here]
        cells = [here] if at else []
    else:
        at = np.linspace(column.low, column.high, N_POINTS).tolist()
        cells = [day(value) for value in at] if column.kind == "date" else at
    if not at:
        return Sweep(column, [], np.zeros((0, max(len(model.target.classes), 1))))
    predictive, _ = predict_rows(model, [{**row, column.name: cell} for cell in cells])
    if isinstance(predictive, ClassPredictive):
        return Sweep(column, at, predictive.probabilities.double().cpu().numpy())
    low, high = predictive.interval(COVERAGE)
    return Sweep(column, at, *(part[:, 0].double().cpu().numpy() for part in (predictive.mean, low, high)))


def described(model: TableModel, row: Row) -> dict[str, Any]:
    """A prediction as plain JSON: moments and a density to draw, or the probability of each class."""
    predictive, notes = predict_rows(model, [row])
    if isinstance(predictive, ClassPredictive):
        p = predictive.probabilities[0].double().tolist()
        return {
            "classes": dict(zip(model.target.classes, p, strict=True)),
            "entropy": float(predictive.entropy[0]),
            "epistemic": float(predictive.mutual_information[0]),
            "notes": notes,
        }
    low, high = (float(end[0, 0]) for end in predictive.interval(COVERAGE))
    parts = {"mean": predictive.mean, "std": predictive.std}
    parts |= {"epistemic_std": predictive.epistemic.sqrt(), "aleatoric_std": predictive.aleatoric.sqrt()}
    numbers = {name: float(part[0, 0]) for name, part in parts.items()}
    return numbers | {"low": low, "high": high, "density": _density(predictive), "notes": notes}


def _density(predictive: Predictive) -> list[tuple[float, float]]:
    """(y, density) along what is probable; of counts, their probabilities."""
    lowest, median, highest = (float(q[0, 0]) for q in predictive.quantiles([0.001, 0.5, 0.999]))
    below, upto = predictive.cdf_bounds(torch.tensor([[median]], dtype=torch.float64))
    if bool((below < upto).any()):  # a single value has a probability
        at = torch.arange(lowest, min(highest, lowest + 400) + 1, dtype=torch.float64)
    else:
        at = torch.linspace(lowest, highest, 81, dtype=torch.float64)
    one = predictive.rows(torch.zeros(len(at), dtype=torch.long))
    return list(zip(at.tolist(), one.log_prob(at[:, None]).double().exp().tolist(), strict=True))
