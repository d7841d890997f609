"""Parquet files, read whole or in batches by pyarrow."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from pathlib import Path

import pandas as pd
import pyarrow as pa
from pyarrow import parquet

from bali.tables.errors import TableError, drop_options, quoted


class ParquetFile:
    def __init__(self, path: Path) -> None:
        self.path = path
        with self._open() as file:
            self._schema = file.schema_arrow
        self.columns = list(self._schema.names)
        twice = [name for name in dict.fromkeys(self.columns) if self.columns.count(name) > 1]
        if twice:
            raise TableError(f"{str(path)!r} has more than one column called {quoted(twice)}; rename them")

    def read(self, columns: Collection[str], as_text: Collection[str] = ()) -> pd.DataFrame:
        """These columns of all rows. A Parquet file knows its types: `as_text` changes nothing."""
        frames = list(self.chunks(columns, as_text, 2**16))
        return pd.concat(frames) if frames else pd.DataFrame(columns=self._wanted(columns))

    def chunks(self, columns: Collection[str], as_text: Collection[str], n_rows: int) -> Iterator[pd.DataFrame]:
        """The same, at most `n_rows` rows at a time."""
        wanted = self._wanted(columns)
        first = 1
        with self._open() as file:
            batches = file.iter_batches(batch_size=n_rows, columns=wanted, use_threads=False)
            while True:
                try:
                    batch = next(batches, None)
                except (pa.ArrowException, OSError) as error:
                    raise self._damaged(error) from error
                if batch is None:
                    return
                frame = batch.to_pandas(integer_object_nulls=False, date_as_object=False)[wanted]
                frame.index = pd.RangeIndex(first, first + len(frame))
                first += len(frame)
                yield frame

    def _open(self) -> parquet.ParquetFile:
        try:
            return parquet.ParquetFile(self.path, pre_buffer=False)
        except (pa.ArrowException, OSError) as error:
            raise self._damaged(error) from error

    def _damaged(self, error: Exception) -> TableError:
        reason = " ".join(str(error).split()).split(". ")[0]
        return TableError(f"{str(self.path)!r} is truncated or not a Parquet file ({reason}); write or copy it again")

    def _wanted(self, columns: Collection[str]) -> list[str]:
        wanted = [name for name in self.columns if name in columns]
        unusable = [name for name in wanted if not _usable(self._schema.field(name).type)]
        if unusable:
            kind = self._schema.field(unusable[0]).type
            raise TableError(
                f"columns of type {kind} cannot be used ({quoted(unusable)}): "
                f"turn them into numbers or text, or leave them out with {drop_options(unusable)}"
            )
        return wanted


def _usable(kind: pa.DataType) -> bool:
    t = pa.types
    if t.is_dictionary(kind):
        kind = kind.value_type
    tests = (
        t.is_integer, t.is_floating, t.is_decimal, t.is_boolean, t.is_string, t.is_large_string, t.is_string_view,
        t.is_date, t.is_timestamp, t.is_null,
    )  # fmt: skip
    return any(test(kind) for test in tests)
