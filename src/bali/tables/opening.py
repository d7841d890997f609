"""Tables in files, or from a stream that is copied once.

Which kind of file it is, CSV or Parquet, is told by its first bytes, not by its name.
"""

from __future__ import annotations

import codecs
import csv
import gzip
import io
import os
import shutil
import sys
import tempfile
import warnings
import weakref
import zlib
from collections import Counter
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, BinaryIO, Protocol

import pandas as pd
import pyarrow as pa
from pandas.errors import EmptyDataError, ParserError, ParserWarning
from pyarrow import parquet

from bali.tables.errors import TableError, drop_options, quoted, shown

STANDARD_INPUT = "-"
_GZIP = b"\x1f\x8b"


class Source:
    """Bytes that can be read from the start as often as one likes."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self.name = repr(str(path))  # in messages
        self.stem = self.path.name
        self._copy: IO[bytes] | None = None
        if os.fspath(path) == STANDARD_INPUT:
            self.name, self.stem = "standard input", "standard input"
            self._copy = _copied(sys.stdin.buffer)
        elif self.path.is_dir():
            raise TableError(f"{self.name} is a folder; name a CSV or Parquet file")
        elif not self.path.exists():
            raise TableError(f"no file at {self.name}")
        elif not self.path.is_file():
            with self._opened() as stream:
                self._copy = _copied(stream)
        if self._copy is not None:
            weakref.finalize(self, self._copy.close)
        with self.open() as file:
            self.start = file.read(4)
        self.is_gzip = self.start[:2] == _GZIP

    def open(self) -> BinaryIO:
        """The bytes, from the first one on."""
        if self._copy is None:
            return self._opened()
        file = os.fdopen(os.dup(self._copy.fileno()), "rb")
        file.seek(0)
        return file

    @contextmanager
    def open_text(self) -> Iterator[IO[bytes]]:
        """The same, uncompressed."""
        with self.open() as file:
            if not self.is_gzip:
                yield file
                return
            with gzip.open(file) as uncompressed:
                yield uncompressed  # type: ignore[misc]  # it reads like a file

    def _opened(self) -> BinaryIO:
        try:
            return self.path.open("rb")
        except OSError as error:
            raise TableError(f"{self.name} cannot be read ({error.strerror})") from error


def _copied(stream: BinaryIO) -> IO[bytes]:
    """A copy without a name, which is gone when this process is."""
    copy = tempfile.TemporaryFile()  # noqa: SIM115 (it is open as long as the table is)
    shutil.copyfileobj(stream, copy, 2**20)
    copy.flush()
    return copy


# --- CSV --------------------------------------------------------------------------------------------------------------


_DELIMITERS = ",;\t|"
#: Characters of a header line; a longer one is no header.
LONGEST_HEADER = 2**22


class CsvFile:
    """A CSV file with a header. The delimiter (comma, semicolon, tab or bar) is taken from the header."""

    def __init__(self, source: Source, encoding: str = "utf-8") -> None:
        self.source = source
        self.encoding = _known_encoding(encoding)
        header = self._first_line()
        if not header.strip():
            raise TableError(f"{source.name} is empty: expected a header line with column names and rows below it")
        if "\0" in header:
            raise TableError(f"the header of {source.name} has a zero byte in it: it is damaged, or not a CSV file")
        if header.count('"') % 2:
            raise TableError(f"the header of {source.name} has a quote that is not closed on its line; correct the header")
        self.delimiter = max(_DELIMITERS, key=header.count)
        with self._explained():
            self.columns = [name.strip() for name in next(csv.reader(io.StringIO(header), delimiter=self.delimiter))]
        twice = [name for name, n in Counter(self.columns).items() if n > 1]
        if twice:
            raise TableError(f"{source.name} has more than one column called {quoted(twice)}; rename them in the header")

    def read(self, columns: Collection[str], as_text: Collection[str] = ()) -> pd.DataFrame:
        """These columns of all rows; those in `as_text` as they are written."""
        with self._explained(), self.source.open_text() as file:
            frame = pd.read_csv(file, **self._options(columns, as_text), low_memory=False)
        return self._numbered(frame, columns, 1)

    def chunks(self, columns: Collection[str], as_text: Collection[str], n_rows: int) -> Iterator[pd.DataFrame]:
        """The same, at most `n_rows` rows at a time. Types are those of each chunk."""
        first = 1
        with self.source.open_text() as file:
            with self._explained():
                reader = pd.read_csv(file, **self._options(columns, as_text), chunksize=n_rows)
            while True:
                with self._explained():
                    frame = next(reader, None)
                if frame is None:
                    return
                yield self._numbered(frame, columns, first)
                first += len(frame)

    def _options(self, columns: Collection[str], as_text: Collection[str]) -> dict[str, Any]:
        return {
            "sep": self.delimiter,
            "encoding": self.encoding,
            "header": 0,
            "names": self.columns,  # as read above: pandas would rename duplicates and keep spaces
            # No "usecols": with it, pandas would not notice rows that have too many fields.
            "index_col": False,
            "dtype": {name: str for name in self.columns if name in as_text or name not in columns},
            "skipinitialspace": True,
        }

    def _numbered(self, frame: pd.DataFrame, columns: Collection[str], first: int) -> pd.DataFrame:
        frame.index = pd.RangeIndex(first, first + len(frame))
        return frame[[name for name in self.columns if name in columns]]

    def _first_line(self) -> str:
        # "-sig": without the mark that some programs put at the start; pandas leaves it out by itself.
        encoding = "utf-8-sig" if self.encoding == "utf-8" else self.encoding
        with self._explained(), self.source.open_text() as file, io.TextIOWrapper(file, encoding, newline="") as text:
            line = text.readline(LONGEST_HEADER)
        if len(line) == LONGEST_HEADER:
            raise TableError(
                f"the first line of {self.source.name} has more than {LONGEST_HEADER:,} characters; "
                "expected a header line with column names and rows below it"
            )
        return line

    @contextmanager
    def _explained(self) -> Iterator[None]:
        """Turns what goes wrong while reading into a `TableError`."""
        file = self.source.name
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("error", ParserWarning)
                yield
        except UnicodeError as error:
            byte = f" (byte 0x{error.object[error.start]:02x})" if isinstance(error, UnicodeDecodeError) else ""
            likely = "utf-16" if byte in (" (byte 0xff)", " (byte 0xfe)") else "latin-1"
            raise TableError(
                f"{file} is not {self.encoding.upper()}{byte}: save it as UTF-8, "
                f"or name its encoding, for example --encoding {likely}"
            ) from error
        except EmptyDataError as error:
            raise TableError(f"{file} is empty: expected a header line with column names and rows below it") from error
        except ParserWarning as error:
            raise TableError(f"{file} has rows with more fields than the header has names; correct the header") from error
        except ParserError as error:
            reason = " ".join(str(error).removeprefix("Error tokenizing data. C error: ").split())
            raise TableError(
                f"{file} is not a well-formed CSV file ({reason}); quote fields that hold the delimiter"
            ) from error
        except csv.Error as error:
            raise TableError(f"the header of {file} cannot be read ({error}); expected column names") from error
        except (gzip.BadGzipFile, EOFError, zlib.error) as error:
            raise TableError(f"{file} is not a complete gzip file ({error}); compress it again") from error


def _known_encoding(name: str) -> str:
    try:
        io.TextIOWrapper(io.BytesIO(), name)  # Python has codecs that are not of text, such as hex
        return codecs.lookup(name).name
    except (LookupError, ValueError) as error:
        raise TableError(f"no encoding is called {shown(name)}; common ones are utf-8, latin-1, cp1252, utf-16") from error


# --- Parquet ----------------------------------------------------------------------------------------------------------


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


# --- either -----------------------------------------------------------------------------------------------------------


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
