"""What the columns of a table are, numbers, dates, categories or nothing that can be used, and their cells read as such.

The rest of the way to rows of numbers is what the estimators do with frames. A model file keeps what was learnt (see
`bali.estimators.frame_columns`) as plain JSON: it holds no code and no pickle, and depends on no other library's version.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from bali.estimators.frame_columns import MISSING as MISSING
from bali.estimators.frame_columns import Column as Column
from bali.estimators.frame_columns import Columns
from bali.estimators.frame_columns import Kind as Kind
from bali.estimators.frame_columns import as_text as as_text
from bali.estimators.frame_columns import canonical as canonical
from bali.tables.errors import TableError, drop_options, plural, quoted, shell_word, shown

#: Squares of larger numbers could not be added up.
LARGEST = 1e100
#: 2024-05-31, 2024-05-31 12:30, 2024-05-31T12:30:15.25+02:00
ISO_DATE = r"\d{4}-\d{2}-\d{2}(?:[T ]\d{2}:\d{2}(?::\d{2}(?:\.\d+)?)?(?:Z|[+-]\d{2}:?\d{2})?)?"


def is_text(column: pd.Series) -> bool:
    """Strings, or Python objects such as truth values beside empty cells."""
    return column.dtype == object or isinstance(column.dtype, pd.StringDtype | pd.CategoricalDtype)


def as_numbers(column: pd.Series) -> NDArray[np.float64]:
    """Numbers, missing ones as NaN. Text and infinities are errors that name the row."""
    if is_text(column):
        parsed = _parsed(column.astype(object))
        wrong = parsed.isna() & column.notna()
        if wrong.any():
            raise TableError(not_a_number(column, wrong))
        column = parsed
    numbers = column.to_numpy(dtype=np.float64, na_value=np.nan)
    for what, wrong in {"infinite": np.isinf(numbers), "beyond 1e100": np.abs(numbers) > LARGEST}.items():
        if wrong.any():
            row = column.index[wrong.argmax()]
            raise TableError(
                f"column {shown(column.name)} is {what} in row {row}; correct that cell, "
                "or leave it empty if it is not known"
            )
    return numbers


def _parsed(column: pd.Series) -> pd.Series:
    """Text as numbers, NaN where it is none."""
    try:
        return pd.to_numeric(column, errors="coerce")
    except OverflowError:  # a whole number of more than 308 digits, which is infinite as a float
        return column.map(lambda cell: pd.to_numeric(f"{cell}e0", errors="coerce"))


def first_cell(column: pd.Series, where: pd.Series) -> tuple[int, str]:
    """Row number and content of the first of some cells."""
    chosen = column[where]
    return int(chosen.index[0]), str(chosen.iloc[0])


def not_a_number(column: pd.Series, wrong: pd.Series) -> str:
    """The message for the first of the cells that should be numbers and are not."""
    row, value = first_cell(column, wrong)
    return (
        f"column {shown(column.name)} holds numbers, but {shown(value)} in row {row} is not one; correct that cell, "
        "or leave it empty if it is not known"
    )


def as_days(column: pd.Series) -> NDArray[np.float64]:
    """Dates and times as days since 1970-01-01 (in UTC where they have a zone), missing ones as NaN."""
    if is_text(column):
        text = column.astype(object)
        wrong = text.notna() & ~text.astype(str).str.strip().str.fullmatch(ISO_DATE)
        parsed = pd.to_datetime(text.mask(wrong), format="ISO8601", utc=True, errors="coerce")
        wrong |= parsed.isna() & text.notna()
        if wrong.any():
            row, value = first_cell(column, wrong)
            raise TableError(
                f"column {shown(column.name)} holds dates, but {shown(value)} in row {row} is not one; "
                "write it as 2024-05-31, or leave the cell empty if it is not known"
            )
        column = parsed
    elif not pd.api.types.is_datetime64_any_dtype(column.dtype):
        if column.isna().all():
            return np.full(len(column), np.nan)
        raise TableError(f"column {shown(column.name)} held dates when the model was trained, but holds numbers here")
    if column.dt.tz is None:
        column = column.dt.tz_localize("UTC")
    # Microseconds: nanoseconds, the unit of pandas, end in the year 2262.
    times = column.dt.tz_convert("UTC").dt.tz_localize(None).to_numpy(dtype="datetime64[us]")
    days: NDArray[np.float64] = (times - np.datetime64(0, "us")) / np.timedelta64(1, "D")
    return days


# --- kinds of columns -------------------------------------------------------------------------------------------------


#: A text column of which at least this share reads as numbers (or dates) is meant to be one.
MEANT = 0.5
_OTHER_DATE = r"\d{1,2}[/.\-]\d{1,2}[/.\-]\d{2,4}(?:[T ].*)?"
_DECIMAL_COMMA = r"[+-]?(?:\d{1,3}(?:\.\d{3})+|\d+),\d+"


@dataclass(frozen=True)
class ColumnPlan:
    """The columns to learn from, in the order of the file, and what is to be said about them."""

    kinds: dict[str, Kind]
    notes: list[str] = field(default_factory=list)


def plan_columns(frame: pd.DataFrame, categories: Collection[str] = ()) -> ColumnPlan:
    """The kind of every column. `categories` names columns of numbers that are to be read as categories."""
    if frame.columns.empty:
        raise TableError("no columns are left to learn from; a table needs at least one beside the target")
    empty = [name for name in frame if frame[name].isna().all()]
    if empty:
        raise TableError(f"{_columns_have(empty)} no values at all; leave out with {drop_options(empty)}")
    kinds: dict[str, Kind] = {str(name): "category" if name in categories else kind_of(frame[name]) for name in frame}
    texts = [name for name, kind in kinds.items() if kind == "category" and name not in categories]
    identifiers = [name for name in texts if _is_identifier(frame[name])]
    if identifiers:
        raise TableError(
            f"{_columns_have(identifiers)} a different text in nearly every row (a name, an identifier, free text?), "
            f"from which nothing can be learned; leave out with {drop_options(identifiers)}"
        )
    return ColumnPlan(kinds, _notes(frame, kinds))


def kind_of(column: pd.Series, if_category: str = "") -> Kind:
    """By type where the file has types, by what the cells look like where it has text.

    `if_category` is what to do about a column that is taken for numbers and is none.
    """
    if isinstance(column.dtype, pd.BooleanDtype) or pd.api.types.is_bool_dtype(column.dtype):
        return "category"
    if pd.api.types.is_datetime64_any_dtype(column.dtype):
        return "date"
    if not is_text(column):
        return "number"
    values = column.dropna().astype(object)
    if values.map(lambda value: isinstance(value, bool)).all():
        return "category"
    text = values.astype(str).str.strip()
    numeric = pd.to_numeric(text, errors="coerce").notna()
    if numeric.all():
        return "number"
    if numeric.mean() >= MEANT:
        remedy = if_category or f"--category {shell_word(column.name)}"
        raise TableError(f"{not_a_number(column, _wrong(column, numeric))}; if the column is a category, use {remedy}")
    if text.str.fullmatch(ISO_DATE).mean() >= MEANT:
        return "date"
    if text.str.fullmatch(_OTHER_DATE).mean() >= MEANT:
        raise TableError(
            f"column {shown(column.name)} holds dates like {shown(text.iloc[0])}, which can be read in more than one way; "
            f"write them as 2024-05-31, or leave out with {drop_options([column.name])}"
        )
    if text.str.fullmatch(_DECIMAL_COMMA).mean() >= MEANT:
        raise TableError(
            f"column {shown(column.name)} has decimal commas ({shown(text.iloc[0])}); write its numbers with points"
        )
    return "category"


def _wrong(column: pd.Series, right: pd.Series) -> pd.Series:
    return pd.Series(column.notna() & ~right.reindex(column.index, fill_value=True), index=column.index)


def _is_identifier(column: pd.Series) -> bool:
    """Text of which the typical value occurs less than twice."""
    if not is_text(column):
        return False
    n, distinct = int(column.notna().sum()), column.nunique()
    return distinct > 20 and distinct > n / 2


def _notes(frame: pd.DataFrame, kinds: dict[str, Kind]) -> list[str]:
    notes = []
    dates = [name for name, kind in kinds.items() if kind == "date"]
    if dates:
        notes.append(f"{quoted(dates)}: dates, used as a number of days; for weekdays or seasons, add columns of your own")
    counters = [name for name, kind in kinds.items() if kind == "number" and _counts_rows(frame[name])]
    if counters:
        notes.append(f"{quoted(counters)}: counts the rows; if that means nothing, use {drop_options(counters)}")
    return notes


def _counts_rows(column: pd.Series) -> bool:
    if len(column) < 20 or not pd.api.types.is_integer_dtype(column.dtype):
        return False
    return bool((np.diff(column.to_numpy()) == 1).all())


def _columns_have(names: Sequence[object]) -> str:
    return f"column {quoted(names)} has" if len(names) == 1 else f"columns {quoted(names)} have"


# --- rows as numbers --------------------------------------------------------------------------------------------------


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
