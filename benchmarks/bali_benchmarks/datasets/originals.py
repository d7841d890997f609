"""From the files of the original sources to the arrays of a data set. Each function takes the folder they lie in."""

from __future__ import annotations

import gzip
import io
import struct
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from bali_benchmarks.datasets import names

Arrays = dict[str, NDArray[Any]]
Parser = Callable[[Path], Arrays]
# What the functions below raise for files that are not what they should be.
UNREADABLE = (ValueError, LookupError, EOFError, zipfile.BadZipFile, gzip.BadGzipFile, zlib.error, struct.error)
IMAGE_FILES = {
    "x_train": "train-images-idx3-ubyte.gz",
    "y_train": "train-labels-idx1-ubyte.gz",
    "x_test": "t10k-images-idx3-ubyte.gz",
    "y_test": "t10k-labels-idx1-ubyte.gz",
}


def split_files(n_splits: int) -> list[str]:
    """The files of a regression set with published splits."""
    parts = [f"index_{part}_{k}.txt" for k in range(n_splits) for part in ("train", "test")]
    return ["data.txt", "index_features.txt", "index_target.txt", *parts]


def regression(folder: Path) -> Arrays:
    """Numbers with blanks between them; which columns and which rows is told by further files of numbers."""

    def rows(part: str) -> NDArray[np.int32]:
        n_splits = len(list(folder.glob(f"index_{part}_*.txt")))
        return np.stack([_integers(folder / f"index_{part}_{k}.txt") for k in range(n_splits)]).astype(np.int32)

    data = _numbers(folder / "data.txt", 2)
    (target,) = _integers(folder / "index_target.txt")
    return {
        "X": data[:, _integers(folder / "index_features.txt")],
        "y": data[:, target],
        "train_index": rows("train"),
        "test_index": rows("test"),
    }


def spam(folder: Path) -> Arrays:
    cells = _zipped_cells(folder / "spambase.zip", "spambase.data")
    return {"X": _single_precision(cells[:, :-1]), "y": cells[:, -1].astype(np.int8)}


def telescope(folder: Path) -> Arrays:
    cells = _zipped_cells(folder / "magic.zip", "magic04.data")
    if not np.isin(cells[:, -1], ["g", "h"]).all():
        raise ValueError("a class is neither 'g' nor 'h'")
    return {"X": _single_precision(cells[:, :-1]), "y": (cells[:, -1] == "g").astype(np.int8)}


def diabetes(folder: Path) -> Arrays:
    """Columns are found by their names: copies of this file differ in their order, and some have one of row numbers."""
    table = pd.read_csv(folder / "data.csv")
    missing = [name for name in (*names.DIABETES, "Diabetes_binary") if name not in table]
    if missing:
        raise ValueError(f"there are no columns {', '.join(missing)}")
    return {"X": table[list(names.DIABETES)].to_numpy(np.uint8), "y": table["Diabetes_binary"].to_numpy(np.int8)}


def images(folder: Path) -> Arrays:
    return {name: _idx(folder / file) for name, file in IMAGE_FILES.items()}


def _numbers(file: Path, n_axes: Literal[1, 2]) -> NDArray[np.float64]:
    text = file.read_text()
    if not text.strip():
        raise ValueError(f"{file.name} is empty")
    return np.loadtxt(io.StringIO(text), ndmin=n_axes)


def _integers(file: Path) -> NDArray[np.int64]:
    """Some of these files write whole numbers as 1.2e+01."""
    numbers = _numbers(file, 1)
    integers = numbers.astype(np.int64)
    if not np.array_equal(numbers, integers):
        raise ValueError(f"{file.name} has numbers that are not whole")
    return integers


def _zipped_cells(archive: Path, member: str) -> NDArray[np.object_]:
    """The cells of a zipped table as text: NumPy turns that into numbers without an error in the last digit."""
    with zipfile.ZipFile(archive) as packed:
        if member not in packed.namelist():
            raise ValueError(f"{archive.name} has no {member}")
        with packed.open(member) as file:
            return pd.read_csv(file, header=None, dtype=str).to_numpy(object)


def _single_precision(cells: NDArray[np.object_]) -> NDArray[np.float32]:
    return cells.astype(np.float64).astype(np.float32)


def _idx(file: Path) -> NDArray[np.uint8]:
    """The format of MNIST: two zeros, type 8 (bytes), the number of axes; a big-endian length each; then the values."""
    content = gzip.decompress(file.read_bytes())
    zeros, kind, n_axes = struct.unpack_from(">HBB", content)
    if zeros != 0 or kind != 8:
        raise ValueError(f"{file.name} is not an idx file of bytes")
    shape = struct.unpack_from(f">{n_axes}I", content, 4)
    return np.frombuffer(content, np.uint8, offset=4 + 4 * n_axes).reshape(shape)
