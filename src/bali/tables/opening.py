"""Which kind of file it is: by its first bytes, not by its name."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator
from typing import Protocol

import pandas as pd

from bali.tables.csv_file import CsvFile
from bali.tables.errors import TableError
from bali.tables.parquet_file import ParquetFile
from bali.tables.source import Source

_ZIP, _PARQUET = b"PK\x03\x04", b"PAR1"


class Table(Protocol):
    """A file of rows and named columns. Frames are indexed by row number, from 1."""

    source: Source
    columns: list[str]

    def read(self, columns: Collection[str], as_text: Collection[str] = ()) -> pd.DataFrame: ...

    def chunks(self, columns: Collection[str], as_text: Collection[str], n_rows: int) -> Iterator[pd.DataFrame]: ...


def open_table(path: str | os.PathLike[str], encoding: str = "utf-8") -> Table:
    """The CSV (plain or compressed by gzip) or Parquet file at this path; "-" is standard input."""
    source = Source(path)
    if not source.start:
        raise TableError(f"{source.name} is empty: expected a header line with column names and rows below it")
    if source.start == _PARQUET or source.path.suffix in (".parquet", ".pq"):
        return ParquetFile(source)
    if source.start == _ZIP:
        raise TableError(f"{source.name} is a spreadsheet or a zip archive; export the table as CSV")
    return CsvFile(source, encoding)
