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

from bali.tables.errors import TableError

Write = Callable[[pd.DataFrame], None]
STDOUT = "-"


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
    with (
        replaced_when_complete(path) as temporary,
        temporary.open("wb") as file,
        _rows_into(file, as_parquet=as_parquet) as write,
    ):
        yield write


@contextmanager
def replaced_when_complete(path: Path) -> Iterator[Path]:
    """A temporary path beside `path` that takes its place at the end, or vanishes if something goes wrong.

    A device or a pipe, such as /dev/null, is written to and not replaced.
    """
    path = path.resolve()
    if path.is_dir():
        raise TableError(f"{str(path)!r} is a folder; name a file to write to")
    if not path.parent.is_dir():
        raise TableError(f"no folder at {str(path.parent)!r} to write {path.name!r} to")
    if path.exists() and not path.is_file():
        yield path
        return
    temporary = path.with_name(f".{path.name}.part")
    try:
        yield temporary
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


@contextmanager
def _rows_into(file: IO[bytes], *, as_parquet: bool) -> Iterator[Write]:
    writer: Any = None

    def write(frame: pd.DataFrame) -> None:
        nonlocal writer
        table = pa.Table.from_pandas(frame, preserve_index=False)
        if writer is None:
            writer = parquet.ParquetWriter(file, table.schema) if as_parquet else _csv_writer(file, table.schema)
        writer.write_table(table.cast(writer.schema) if as_parquet else table)

    try:
        yield write
    finally:
        if writer is not None:
            writer.close()


def _csv_writer(file: IO[bytes], schema: pa.Schema) -> arrow_csv.CSVWriter:
    header = io.StringIO()
    csv.writer(header, lineterminator="\n").writerow(schema.names)  # with quotes only where they are needed
    file.write(header.getvalue().encode())
    return arrow_csv.CSVWriter(file, schema, write_options=arrow_csv.WriteOptions(include_header=False))
