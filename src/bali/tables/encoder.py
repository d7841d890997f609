"""Rows of a table as numbers: cells are read by the kind of their column, the rest is what the estimators do with frames.

A model file keeps what was learnt (see `bali.estimators.frame_columns`) as plain JSON: it holds no code and no pickle, and
depends on no other library's version.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd

from bali.estimators.frame_columns import MISSING as MISSING
from bali.estimators.frame_columns import Column as Column
from bali.estimators.frame_columns import Columns, Kind, as_text
from bali.tables.cells import as_days, as_numbers
from bali.tables.errors import TableError, plural, quoted, shown


class Surprises:
    """What new rows hold that the training rows did not: counted, for a note at the end."""

    def __init__(self) -> None:
        self.missing: Counter[str] = Counter()
        self.unknown: dict[str, Counter[str]] = {}

    def notes(self) -> list[str]:
        empty = [
            f"{shown(name)}: empty in {plural(n, 'row')}, but never in training; the training median is used"
            for name, n in self.missing.items()
        ]
        new = [
            f"{shown(name)}: {plural(seen.total(), 'row')} with a category the model does not know "
            f"({quoted(value for value, _ in seen.most_common())}), treated as none of the known"
            for name, seen in self.unknown.items()
        ]
        return empty + new


class TableEncoder(Columns):
    """Numbers and dates with missing cells set to the median and marked; categories one-hot, unknown ones all zero."""

    @classmethod
    def learn(cls, frame: pd.DataFrame, kinds: Mapping[str, Kind]) -> TableEncoder:
        return cls([Column.learn(name, kind, _cells(frame[name], kind)) for name, kind in kinds.items()])

    def transform(self, frame: pd.DataFrame, surprises: Surprises | None = None) -> pd.DataFrame:
        """Features of the rows of a table; columns that are not wanted are ignored."""
        absent = [c.name for c in self.columns if c.name not in frame]
        if absent:
            raise TableError(f"the model needs columns that are not there: {quoted(absent)}")
        cells = {c.name: _cells(frame[c.name], c.kind) for c in self.columns}
        if surprises is not None:
            self._compare(cells, surprises)
        return pd.DataFrame(self.features(cells), columns=self.feature_names, index=frame.index)

    def _compare(self, cells: Mapping[str, Any], surprises: Surprises) -> None:
        for column in self.numeric:
            n = int(np.isnan(cells[column.name]).sum())
            if n and not column.has_missing:
                surprises.missing[column.name] += n
        for column in self.categorical:
            values = pd.Series(cells[column.name], dtype=object).fillna(MISSING)
            unknown = values[~values.isin(column.categories)]
            if len(unknown):
                surprises.unknown.setdefault(column.name, Counter()).update(unknown.astype(str).to_list())

    @classmethod
    def from_json(cls, columns: list[dict[str, Any]]) -> TableEncoder:
        return cls([Column(**column) for column in columns])


def numeric_cells(column: pd.Series, kind: Kind) -> Any:
    """Numbers, or dates as days."""
    return as_days(column) if kind == "date" else as_numbers(column)


def _cells(column: pd.Series, kind: Kind) -> Any:
    return as_text(column).to_numpy(dtype=object) if kind == "category" else numeric_cells(column, kind)
