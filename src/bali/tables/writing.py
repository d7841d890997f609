"""Predictions into a file or to standard output, piece by piece; a file appears only when it is complete."""

from __future__ import annotations

import csv
import io
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import pandas as pd
import pyarrow as pa
from pyarrow import csv as arrow_csv
from pyarrow import parquet

from bali.tables.cells import is_text
from bali.tables.complete_writes import complete_file

Write = Callable[[pd.DataFrame], None]
STDOUT = "-"
#: What a spreadsheet takes a cell for a formula by, unless it is a number.
_FORMULA = r"[=+\-@\t\r]"


@contextmanager
def prediction_writer(out: str) -> Iterator[Write]:
    """A function that appends rows to `out`: Parquet if its name says so, else CSV; "-" is standard output."""
    if out == STDOUT:
        with _rows_into(sys.stdout.buffer, as_parquet=False) as write:
            yield write
        sys.stdout.flush()
        return
    path = Path(out)
    as_parquet = path.suffix in (".parquet", ".pq")
    with complete_file(path) as part, part.open("wb") as file, _rows_into(file, as_parquet=as_parquet) as write:
        yield write


def without_formulas(frame: pd.DataFrame) -> pd.DataFrame:
    """Text that a spreadsheet would run as a formula, with an apostrophe before it, which makes it text again."""
    frame = frame.rename(columns=lambda name: _as_text_only(pd.Series([name])).iloc[0])
    return frame.assign(**{str(name): _as_text_only(frame[name]) for name in frame if is_text(frame[name])})


def _as_text_only(column: pd.Series) -> pd.Series:
    text = column.astype(object)
    risky = text.astype(str).str.match(_FORMULA) & pd.to_numeric(text, errors="coerce").isna() & text.notna()
    return text.mask(risky, "'" + text.astype(str))


@contextmanager
def _rows_into(file: IO[bytes], *, as_parquet: bool) -> Iterator[Write]:
    writer: Any = None

    def write(frame: pd.DataFrame) -> None:
        nonlocal writer
        table = pa.Table.from_pandas(frame, preserve_index=False)
        if writer is None:
            writer = _parquet_writer(file, table.schema) if as_parquet else _csv_writer(file, table.schema)
        writer.write_table(table.cast(writer.schema) if as_parquet else table)

    try:
        yield write
    finally:
        if writer is not None:
            writer.close()


def _parquet_writer(file: IO[bytes], schema: pa.Schema) -> parquet.ParquetWriter:
    return parquet.ParquetWriter(file, schema, write_page_checksum=True)


def _csv_writer(file: IO[bytes], schema: pa.Schema) -> arrow_csv.CSVWriter:
    header = io.StringIO()
    csv.writer(header, lineterminator="\n").writerow(schema.names)  # with quotes only where they are needed
    file.write(header.getvalue().encode())
    return arrow_csv.CSVWriter(file, schema, write_options=arrow_csv.WriteOptions(include_header=False))
