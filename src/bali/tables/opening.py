"""Which kind of file it is: by its first bytes, not by its name."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Protocol

import pandas as pd

from bali.tables.csv_file import CsvFile
from bali.tables.errors import TableError
from bali.tables.parquet_file import ParquetFile

_ZIP, _PARQUET = b"PK\x03\x04", b"PAR1"


class Table(Protocol):
    """A file of rows and named columns. Frames are indexed by row number, from 1."""

    path: Path
    columns: list[str]

    def read(self, columns: Collection[str], as_text: Collection[str] = ()) -> pd.DataFrame: ...

    def chunks(self, columns: Collection[str], as_text: Collection[str], n_rows: int) -> Iterator[pd.DataFrame]: ...


def open_table(path: str | os.PathLike[str], encoding: str = "utf-8") -> Table:
    """The CSV (plain or .gz) or Parquet file at this path."""
    path = Path(path)
    if path.is_dir():
        raise TableError(f"{str(path)!r} is a folder; name a CSV or Parquet file")
    if not path.exists():
        raise TableError(f"no file at {str(path)!r}")
    try:
        with path.open("rb") as file:
            start = file.read(4)
    except OSError as error:
        raise TableError(f"{str(path)!r} cannot be read ({error.strerror})") from error
    if not start:
        raise TableError(f"{str(path)!r} is empty: expected a header line with column names and rows below it")
    if start == _PARQUET or path.suffix in (".parquet", ".pq"):
        return ParquetFile(path)
    if start == _ZIP:
        raise TableError(f"{str(path)!r} is a spreadsheet or a zip archive; export the table as CSV")
    return CsvFile(path, encoding)
