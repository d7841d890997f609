"""Where the bytes of a table come from: a file, or a stream that is copied once, as it can be read only once."""

from __future__ import annotations

import gzip
import os
import shutil
import sys
import tempfile
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, BinaryIO

from bali.tables.errors import TableError

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
