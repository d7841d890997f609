"""Columns of any kind as columns of numbers: missing values and categories, for the estimators and for files alike.

What is learnt from the training rows is little, and plain: a median per column of numbers, whether it had missing values,
the categories of the others. From it a column of numbers becomes itself with missing values set to the median, and one more
column that marks them; a category becomes a column of zeros and ones for each of its common values. Rare and unknown ones
are zero in all of them, and so are together one more category.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

import numpy as np
import pandas as pd
from numpy.typing import NDArray

Array = NDArray[Any]
Kind = Literal["number", "date", "category"]

#: What a missing value of a column of categories is called, where the training rows have some.
MISSING = "(missing)"
#: Of a column's categories, at most this many, and only those in at least one row of a thousand, get a column of their own.
MAX_CATEGORIES = 100
MIN_SHARE = 0.001
_WHOLE = re.compile(r"(-?\d+)\.0*")
_TRUTH = {"true": "True", "false": "False"}


def canonical(value: object) -> str:
    """One spelling for what means the same: 3, 3.0 and "3"; True, "TRUE" and "true"."""
    text = str(value).strip()
    whole = _WHOLE.fullmatch(text)
    return whole[1] if whole else _TRUTH.get(text.lower(), text)


def as_text(column: pd.Series) -> pd.Series:
    """Categories as text, missing ones as NaN."""
    values = column.astype(object)
    spelled = {value: canonical(value) for value in values.dropna().unique()}
    return values.map(spelled)


@dataclass(frozen=True)
class Column:
    """What was learnt about one column."""

    name: str
    kind: Kind
    has_missing: bool
    median: float = 0.0  # numbers and dates
    categories: list[str] = field(default_factory=list)

    @classmethod
    def learn(cls, name: str, kind: Kind, cells: Any) -> Column:
        """From numbers with NaN, or text with NaN."""
        if kind == "category":
            text = pd.Series(cells, dtype=object)
            counts = text.fillna(MISSING).value_counts()
            common = counts[counts >= MIN_SHARE * len(text)].head(MAX_CATEGORIES)
            return cls(name, kind, bool(text.isna().any()), categories=sorted(str(value) for value in common.index))
        missing = np.isnan(cells)
        if not missing.any():
            return cls(name, kind, False, float(np.median(cells)))
        # With no value among the training rows any number would do.
        return cls(name, kind, True, 0.0 if missing.all() else float(np.nanmedian(cells)))


class Columns:
    """What was learnt about all columns: numbers first, then marks of missing ones, then categories."""

    def __init__(self, columns: Sequence[Column]) -> None:
        self.columns = list(columns)
        self.numeric = [c for c in self.columns if c.kind != "category"]
        self.categorical = [c for c in self.columns if c.kind == "category"]
        self.feature_names = (
            [c.name for c in self.numeric]
            + [f"{c.name} is missing" for c in self.numeric if c.has_missing]
            + [f"{c.name} = {value}" for c in self.categorical for value in c.categories]
        )

    def features(self, cells: Mapping[str, Any]) -> Array:
        """Rows of numbers (n, F) from cells by name: numbers with NaN, or text with NaN."""
        numbers = [np.asarray(cells[c.name], dtype=np.float64) for c in self.numeric]
        missing = [np.isnan(column) for column in numbers]
        parts = [np.where(gone, c.median, column) for c, column, gone in zip(self.numeric, numbers, missing, strict=True)]
        parts += [gone.astype(np.float64) for c, gone in zip(self.numeric, missing, strict=True) if c.has_missing]
        for column in self.categorical:
            text = pd.Series(cells[column.name], dtype=object).fillna(MISSING)
            known = pd.Index(column.categories, dtype=object)
            codes = known.get_indexer(pd.Index(text))  # −1 for values that are none of these
            parts += [(codes == number).astype(np.float64) for number in range(len(column.categories))]
        return np.column_stack(parts)

    def to_json(self) -> list[dict[str, Any]]:
        return [asdict(column) for column in self.columns]

    @property
    def summary(self) -> dict[str, str]:
        """What was done, in words, where something was."""
        marked, split = [c.name for c in self.numeric if c.has_missing], [c.name for c in self.categorical]
        found = {"missing values": f"the median, and marked, in {_listed(marked)}"} if marked else {}
        return found | ({"categories": f"a column of zeros and ones each, in {_listed(split)}"} if split else {})


def columns_from_json(saved: Sequence[Mapping[str, Any]]) -> Columns:
    return Columns([Column(**column) for column in saved])


# --- what users give to `fit` and `predict` ---------------------------------------------------------------------------


def split_texts(X: Any, known: Columns | None) -> tuple[Any, dict[int, Array]]:
    """X as scikit-learn can check it, and apart from it the text of the columns of a frame that hold some, by their place.

    In X such columns are zero. `known` are the columns that an estimator was fitted to, if it was.
    """
    frame = _frame(X)
    if frame is None or frame.empty or all(map(_is_plain, frame.dtypes)):
        return X, {}
    kinds = [c.kind for c in known.columns] if known is not None else []
    cells = [_cells(column, kind) for (_, column), kind in zip(frame.items(), _padded(kinds, frame.shape[1]), strict=True)]
    texts = {i: values for i, values in enumerate(cells) if values.dtype == object}
    numbers = {i: np.zeros(len(frame)) if i in texts else values for i, values in enumerate(cells)}
    return pd.DataFrame(numbers, index=frame.index).set_axis(frame.columns, axis=1), texts


def _padded(kinds: Sequence[Kind], n_columns: int) -> list[Kind | None]:
    """None where nothing is known; whether there are as many columns as there were is scikit-learn's to say."""
    return [*kinds[:n_columns], *[None] * (n_columns - len(kinds))]


def named_cells(rows: Array, texts: Mapping[int, Array], names: Sequence[object] | None) -> dict[str, Any]:
    """Columns by name."""
    return {name: texts.get(i, rows[:, i]) for i, name in enumerate(column_names(rows.shape[1], names))}


def column_names(n: int, names: Sequence[object] | None) -> list[str]:
    """All different; those of an array are called x0, x1, …"""
    called = [f"x{i}" for i in range(n)] if names is None else [str(name) for name in names]
    return [f"{name} ({i})" if called.count(name) > 1 else name for i, name in enumerate(called)]


def learn_columns(cells: Mapping[str, Any]) -> Columns:
    columns = []
    for name, values in cells.items():
        kind: Kind = "category" if values.dtype == object else "number"
        if kind == "category":
            _refuse_identifiers(name, pd.Series(values, dtype=object).dropna())
        columns.append(Column.learn(name, kind, values))
    return Columns(columns)


def _frame(X: Any) -> pd.DataFrame | None:
    if not isinstance(X, pd.DataFrame) and hasattr(X, "to_pandas"):  # polars, pyarrow
        X = X.to_pandas()
    return X if isinstance(X, pd.DataFrame) else None


def _is_plain(dtype: Any) -> bool:
    """Numbers that NumPy knows."""
    return isinstance(dtype, np.dtype) and dtype.kind in "fiu"


def _cells(column: pd.Series, known: Kind | None) -> Array:
    """Numbers with NaN, or an array of text."""
    name = column.name
    kind = known or _kind(name, column)
    if kind == "category":
        text: Array = as_text(column).to_numpy(dtype=object)
        return text
    if known and _kind(name, column) != "number" and not column.isna().all():
        raise ValueError(
            f"column {name!r} held numbers when the model was fitted and holds text here; turn it into numbers, "
            "missing ones as NaN"
        )
    numbers: Array = column.astype(object).where(column.notna(), np.nan).to_numpy(dtype=np.float64)
    if np.isinf(numbers).any():
        row = int(np.isinf(numbers).argmax())
        raise ValueError(f"column {name!r} is infinity in row {row} (from 0); correct it, or use NaN if it is not known")
    return numbers


def _kind(name: object, column: pd.Series) -> Kind:
    dtype = column.dtype
    if isinstance(dtype, pd.CategoricalDtype):
        return "category"
    if pd.api.types.is_bool_dtype(dtype) or (pd.api.types.is_numeric_dtype(dtype) and not _is_complex(dtype)):
        return "number"
    if pd.api.types.is_datetime64_any_dtype(dtype) or (isinstance(dtype, np.dtype) and dtype.kind == "m"):
        what = "dates" if pd.api.types.is_datetime64_any_dtype(dtype) else "spans of time"
        raise ValueError(
            f"column {name!r} holds {what}; turn it into numbers, such as days since a first one, or leave it out"
        )
    values = column.dropna().astype(object)
    texts = values.map(lambda value: isinstance(value, str))
    if len(values) and texts.all():
        return "category"
    numbers = values.map(lambda value: isinstance(value, bool | int | float | np.number | np.bool_))
    if numbers.all():
        return "number"
    odd = values[~(texts | numbers)]
    if len(odd):
        raise TypeError(
            f"column {name!r} holds a {type(odd.iloc[0]).__name__}, which is no number and no text: an argument must be a "
            "string or a number; turn the column into numbers, text or categories, or leave it out"
        )
    raise ValueError(
        f"column {name!r} mixes text, such as {values[texts].iloc[0]!r}, with numbers, such as {values[numbers].iloc[0]!r}; "
        "turn all of it into numbers (missing ones as NaN), or into categories with .astype(str)"
    )


def _is_complex(dtype: Any) -> bool:
    return isinstance(dtype, np.dtype) and dtype.kind == "c"


def _refuse_identifiers(name: str, texts: pd.Series) -> None:
    distinct = texts.nunique()
    if distinct > 20 and distinct > len(texts) / 2:
        raise ValueError(
            f"column {name!r} has a different text in nearly every row ({distinct} in {len(texts)}), from which nothing "
            "can be learnt; leave it out"
        )


def _listed(names: Sequence[str]) -> str:
    return ", ".join(map(repr, names[:5])) + (f" and {len(names) - 5} more" if len(names) > 5 else "")
