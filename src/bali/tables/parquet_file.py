"""Parquet files, read whole or in batches by pyarrow."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from typing import BinaryIO

import pandas as pd
import pyarrow as pa
from pyarrow import parquet

from bali.tables.errors import TableError, drop_options, quoted
from bali.tables.source import Source


class ParquetFile:
    def __init__(self, source: Source) -> None:
        self.source = source
        with self._decoding(), source.open() as raw, self._parquet(raw) as file:
            self._schema = file.schema_arrow.remove_metadata()
            self.columns = list(self._schema.names)
        if any("\0" in name for name in self.columns):
            raise TableError(f"{source.name} has a column with a zero byte in its name: it is damaged, or rename the column")
        twice = [name for name, n in Counter(self.columns).items() if n > 1]
        if twice:
            raise TableError(f"{source.name} has more than one column called {quoted(twice)}; rename them")

    def read(self, columns: Collection[str], as_text: Collection[str] = ()) -> pd.DataFrame:
        """These columns of all rows. A Parquet file knows its types: `as_text` changes nothing."""
        frames = list(self.chunks(columns, as_text, 2**16))
        return pd.concat(frames) if frames else pd.DataFrame(columns=self._wanted(columns))

    def chunks(self, columns: Collection[str], as_text: Collection[str], n_rows: int) -> Iterator[pd.DataFrame]:
        """The same, at most `n_rows` rows at a time."""
        wanted = self._wanted(columns)
        first = 1
        with self.source.open() as raw:
            with self._decoding():
                batches = self._parquet(raw).iter_batches(batch_size=n_rows, columns=wanted, use_threads=False)
            while True:
                with self._decoding():
                    batch = next(batches, None)
                    if batch is None:
                        return
                    # What pandas wrote about its own types is not needed, and can be damaged too.
                    options = {"integer_object_nulls": False, "date_as_object": False, "ignore_metadata": True}
                    frame = batch.to_pandas(**options)[wanted]
                frame.index = pd.RangeIndex(first, first + len(frame))
                first += len(frame)
                yield frame

    @staticmethod
    def _parquet(raw: BinaryIO) -> parquet.ParquetFile:
        return parquet.ParquetFile(raw, pre_buffer=False, page_checksum_verification=True)

    @contextmanager
    def _decoding(self) -> Iterator[None]:
        """Bytes that are not what they should be surface as any exception of a decoder, which all mean the same."""
        try:
            yield
        except Exception as error:
            reason = " ".join(str(error).split()).split(". ")[0][:200]
            raise TableError(
                f"{self.source.name} is truncated or not a Parquet file ({reason or type(error).__name__}); "
                "write or copy it again"
            ) from error

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
