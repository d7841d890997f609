"""Sets of a few rows, of every kind: their entries in the registry, their arrays, and their original files."""

from __future__ import annotations

import gzip
import io
import struct
import zipfile
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
import pytest
from numpy.typing import NDArray

from bali_benchmarks.datasets import names, originals, storage
from bali_benchmarks.datasets.registry import ENTRIES, Entry, RemoteFile

Arrays = dict[str, NDArray[Any]]
LIKE = {"yacht": 3, "spam": 0, "telescope": 0, "diabetes": 0, "mnist": 0}  # one set of every format, published splits


def arrays_like(name: str, seed: int = 0) -> Arrays:
    """Random values of the types and columns of a set, 20 rows of them (images: 12 and 8)."""
    rng, entry = np.random.default_rng(seed), ENTRIES[name]
    width = len(entry.feature_names)
    if entry.kind == "images":
        shapes = {"x_train": (12, 28, 28), "y_train": (12,), "x_test": (8, 28, 28), "y_test": (8,)}
        return {part: rng.integers(0, 10, shape).astype(np.uint8) for part, shape in shapes.items()}
    labels = rng.integers(0, 2, 20).astype(np.int8)
    if name == "diabetes":
        return {"X": rng.integers(0, 99, (20, width)).astype(np.uint8), "y": labels}
    if entry.kind == "classification":
        return {"X": rng.normal(scale=50, size=(20, width)).astype(np.float32), "y": labels}
    orders = np.stack([rng.permutation(20) for _ in range(LIKE["yacht"])]).astype(np.int32)
    splits = {"train_index": orders[:, :18], "test_index": orders[:, 18:]}
    return {"X": rng.normal(size=(20, width)), "y": rng.normal(size=20), **splits}


def original_files(name: str, arrays: Arrays) -> dict[str, bytes]:
    """These arrays as the source of the set would send them."""
    if name in ("mnist", "fashion_mnist"):
        return {file: gzip.compress(_idx(arrays[part]), 0) for part, file in originals.IMAGE_FILES.items()}
    x, y = arrays["X"], arrays["y"]
    if name == "spam":
        return {"spambase.zip": _zipped("spambase.data", _lines(x, y.astype(str), ","))}
    if name == "telescope":
        return {"magic.zip": _zipped("magic04.data", _lines(x, np.where(y == 1, "g", "h"), ","))}
    if name == "diabetes":
        table = pd.DataFrame(x.astype(int), columns=pd.Index(names.DIABETES))
        table.insert(0, "Diabetes_binary", y.astype(int))
        table.insert(0, "ID", np.arange(len(y)))
        return {"data.csv": table.to_csv(index=False).encode()}
    files = {"data.txt": _lines(x, y.astype(str), " "), "index_target.txt": f"{float(x.shape[1]):.18e}\n"}
    files["index_features.txt"] = "".join(f"{column:.18e}\n" for column in range(x.shape[1]))
    for part in ("train", "test"):
        for k, rows in enumerate(arrays[f"{part}_index"]):
            files[f"index_{part}_{k}.txt"] = "".join(f"{row}\n" for row in rows)
    return {file: text.encode() for file, text in files.items()}


def small_entry(name: str, arrays: Arrays, url: str = "http://127.0.0.1:9") -> Entry:
    """The entry of a set whose right data are these arrays, to be had at `url`."""
    entry = ENTRIES[name]
    files = [file for file in entry.files if name != "yacht" or file.name in originals.split_files(LIKE["yacht"])]
    return replace(
        entry,
        n_rows=20,
        n_splits=LIKE[name] or entry.n_splits,
        fingerprint=storage.fingerprint(arrays),
        files=tuple(RemoteFile(file.name, (f"{url}/{file.name}",)) for file in files),
    )


def use_only(monkeypatch: pytest.MonkeyPatch, *entries: Entry) -> None:
    """Make these the only sets there are."""
    for name in list(ENTRIES):
        monkeypatch.delitem(ENTRIES, name)
    for entry in entries:
        monkeypatch.setitem(ENTRIES, entry.name, entry)


def _lines(x: NDArray[Any], last: NDArray[Any], blank: str) -> str:
    rows = [[*map(str, row), str(end)] for row, end in zip(x, last, strict=True)]
    return "".join(blank.join(row) + "\n" for row in rows)


def _zipped(member: str, text: str) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(member, text)
    return buffer.getvalue()


def _idx(array: NDArray[Any]) -> bytes:
    return struct.pack(f">HBB{array.ndim}I", 0, 8, array.ndim, *array.shape) + array.tobytes()
