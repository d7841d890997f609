"""Cells as numbers, days or text: what a column of any type is read as, once its kind is known."""

from __future__ import annotations

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from bali.estimators.frame_columns import as_text as as_text
from bali.estimators.frame_columns import canonical as canonical
from bali.tables.errors import TableError, shown

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
