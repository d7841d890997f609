"""CSV files, read whole or in chunks by pandas."""

from __future__ import annotations

import codecs
import csv
import gzip
import io
import warnings
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pandas as pd
from pandas.errors import EmptyDataError, ParserError, ParserWarning

from bali.tables.errors import TableError, quoted

_DELIMITERS = ",;\t|"


class CsvFile:
    """A CSV file with a header. The delimiter (comma, semicolon, tab or bar) is taken from the header."""

    def __init__(self, path: Path, encoding: str = "utf-8") -> None:
        self.path = path
        self.encoding = _known_encoding(encoding)
        header = self._first_line()
        if not header.strip():
            raise TableError(f"{str(path)!r} is empty: expected a header line with column names and rows below it")
        self.delimiter = max(_DELIMITERS, key=header.count)
        self.columns = [name.strip() for name in next(csv.reader(io.StringIO(header), delimiter=self.delimiter))]
        twice = [name for name in dict.fromkeys(self.columns) if self.columns.count(name) > 1]
        if twice:
            raise TableError(f"{str(path)!r} has more than one column called {quoted(twice)}; rename them in the header")

    def read(self, columns: Collection[str], as_text: Collection[str] = ()) -> pd.DataFrame:
        """These columns of all rows; those in `as_text` as they are written."""
        with self._explained():
            frame = pd.read_csv(self.path, **self._options(columns, as_text), low_memory=False)
        return self._numbered(frame, columns, 1)

    def chunks(self, columns: Collection[str], as_text: Collection[str], n_rows: int) -> Iterator[pd.DataFrame]:
        """The same, at most `n_rows` rows at a time. Types are those of each chunk."""
        first = 1
        with self._explained():
            reader = pd.read_csv(self.path, **self._options(columns, as_text), chunksize=n_rows)
        with reader:
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
        opener: Any = gzip.open if self.path.suffix == ".gz" else open
        # "-sig": without the mark that some programs put at the start; pandas leaves it out by itself.
        encoding = "utf-8-sig" if self.encoding == "utf-8" else self.encoding
        with self._explained(), opener(self.path, "rt", encoding=encoding, newline="") as file:
            line: str = file.readline()
        return line

    @contextmanager
    def _explained(self) -> Iterator[None]:
        """Turns what goes wrong while reading into a `TableError`."""
        file = repr(str(self.path))
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
        except (gzip.BadGzipFile, EOFError) as error:
            raise TableError(f"{file} is not a complete gzip file ({error}); compress it again") from error


def _known_encoding(name: str) -> str:
    try:
        return codecs.lookup(name).name
    except LookupError as error:
        raise TableError(f"no encoding is called {name!r}; utf-8, latin-1, cp1252 and utf-16 are common ones") from error
