"""Rows of a table as numbers, by scikit-learn's own preprocessing, kept as plain JSON.

What is learned from the training rows is little: a median per column of numbers, whether it had missing values, the
categories of the others. `TableEncoder` keeps just that. From it, the same scikit-learn transformers are built whether
the model was just trained or read from a file: each is fitted to two rows made up so that it learns what is wanted. So a
model file holds no code and no pickle, and does not depend on the version of scikit-learn that wrote it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
import pandas as pd
from sklearn.compose import ColumnTransformer
from sklearn.impute import SimpleImputer
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder

from bali.tables.cells import as_days, as_numbers, as_text
from bali.tables.column_kinds import Kind
from bali.tables.errors import TableError, plural, quoted, shown

#: What an empty cell of a column of categories is called, where the training rows have some.
MISSING = "(missing)"
#: Of a column's categories, at most this many, and only those in at least one row of a thousand, get a column of their own.
MAX_CATEGORIES = 100
MIN_SHARE = 0.001


@dataclass(frozen=True)
class Column:
    """What was learned about one column."""

    name: str
    kind: Kind
    has_missing: bool
    median: float = 0.0  # numbers and dates
    categories: list[str] = field(default_factory=list)


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


class TableEncoder:
    """Numbers and dates with missing cells set to the median and marked; categories one-hot, unknown ones all zero."""

    def __init__(self, columns: list[Column]) -> None:
        self.columns = columns
        self.numeric = [c for c in columns if c.kind != "category"]
        self.categorical = [c for c in columns if c.kind == "category"]
        self._transformer = _transformer(self.numeric, self.categorical)
        self.feature_names = (
            [c.name for c in self.numeric]
            + [f"{c.name} is missing" for c in self.numeric if c.has_missing]
            + [f"{c.name} = {value}" for c in self.categorical for value in c.categories]
        )

    @classmethod
    def learn(cls, frame: pd.DataFrame, kinds: Mapping[str, Kind]) -> TableEncoder:
        return cls([_learn_column(frame[name], kind) for name, kind in kinds.items()])

    def transform(self, frame: pd.DataFrame, surprises: Surprises | None = None) -> pd.DataFrame:
        """Features of the rows of a table; columns that are not wanted are ignored."""
        absent = [c.name for c in self.columns if c.name not in frame]
        if absent:
            raise TableError(f"the model needs columns that are not there: {quoted(absent)}")
        numbers: dict[str, Any] = {c.name: numeric_cells(frame[c.name], c.kind) for c in self.numeric}
        texts: dict[str, Any] = {c.name: as_text(frame[c.name]).to_numpy(dtype=object) for c in self.categorical}
        if surprises is not None:
            self._compare(numbers, texts, surprises)
        features = self._transformer.transform(pd.DataFrame(numbers | texts, index=frame.index))
        return pd.DataFrame(features, columns=self.feature_names, index=frame.index)

    def _compare(self, numbers: Mapping[str, Any], texts: Mapping[str, Any], surprises: Surprises) -> None:
        for column in self.numeric:
            n = int(np.isnan(numbers[column.name]).sum())
            if n and not column.has_missing:
                surprises.missing[column.name] += n
        for column in self.categorical:
            values = pd.Series(texts[column.name]).fillna(MISSING)
            unknown = values[~values.isin(column.categories)]
            if len(unknown):
                surprises.unknown.setdefault(column.name, Counter()).update(unknown.astype(str).to_list())

    def to_json(self) -> list[dict[str, Any]]:
        return [asdict(column) for column in self.columns]

    @classmethod
    def from_json(cls, columns: list[dict[str, Any]]) -> TableEncoder:
        return cls([Column(**column) for column in columns])


def numeric_cells(column: pd.Series, kind: Kind) -> Any:
    """Numbers, or dates as days."""
    return as_days(column) if kind == "date" else as_numbers(column)


def _learn_column(column: pd.Series, kind: Kind) -> Column:
    name = str(column.name)
    if kind == "category":
        text = as_text(column)
        counts = text.fillna(MISSING).value_counts()
        common = counts[counts >= MIN_SHARE * len(text)].head(MAX_CATEGORIES)
        return Column(name, kind, bool(text.isna().any()), categories=sorted(str(value) for value in common.index))
    cells = numeric_cells(column, kind)
    missing = np.isnan(cells)
    # With no value among the training rows any number would do.
    return Column(name, kind, bool(missing.any()), 0.0 if missing.all() else float(np.nanmedian(cells)))


def _transformer(numeric: list[Column], categorical: list[Column]) -> ColumnTransformer:
    """scikit-learn's transformers in the state that these columns describe."""
    imputer = SimpleImputer(strategy="median", add_indicator=True)
    one_hot = make_pipeline(
        SimpleImputer(strategy="constant", fill_value=MISSING),
        OneHotEncoder(categories=[c.categories for c in categorical], handle_unknown="ignore", sparse_output=False),
    )
    parts = [("numbers", imputer, [c.name for c in numeric])] if numeric else []
    parts += [("categories", one_hot, [c.name for c in categorical])] if categorical else []
    # The median of one value is that value; the imputer marks the columns in which it saw a missing one.
    rows: dict[str, Any] = {c.name: [c.median, np.nan if c.has_missing else c.median] for c in numeric}
    rows |= {c.name: np.array([c.categories[0], c.categories[0]], dtype=object) for c in categorical}
    return ColumnTransformer(parts).fit(pd.DataFrame(rows))
