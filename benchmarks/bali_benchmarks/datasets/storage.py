"""Data sets as .npz files: where they lie, how they are read, checked and written."""

from __future__ import annotations

import hashlib
import os
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bali.files import replacing
from bali_benchmarks.datasets.data_error import DataError
from bali_benchmarks.datasets.registry import Entry

FOLDER_VARIABLE = "BALI_DATA"
Arrays = Mapping[str, NDArray[Any]]


def data_folder() -> Path | None:
    """The folder that the user keeps data sets in, if one is named in the environment."""
    named = os.environ.get(FOLDER_VARIABLE)
    if not named:
        return None
    folder = Path(named).expanduser()
    if not folder.is_dir():
        raise DataError(f"{FOLDER_VARIABLE} names {str(folder)!r}, which is not a folder: correct it or unset it")
    return folder


def cache_folder() -> Path:
    """Where downloaded sets are kept: the operating system's place for caches."""
    import pooch

    return Path(pooch.os_cache("bali"))


def find(entry: Entry) -> Path | None:
    """The file of a set that is on this machine: in the user's folder, or else in the cache."""
    folders = [folder for folder in (data_folder(), cache_folder()) if folder is not None]
    return next((folder / entry.path for folder in folders if (folder / entry.path).is_file()), None)


def fingerprint(arrays: Arrays) -> str:
    """sha256 over names, types, shapes and values. Unlike that of a file, it does not depend on how they were packed."""
    digest = hashlib.sha256()
    for name in sorted(arrays):
        array = arrays[name]
        little_endian = np.ascontiguousarray(array, dtype=array.dtype.newbyteorder("<"))
        digest.update(f"{name} {array.dtype.newbyteorder('<').str} {array.shape}\n".encode())
        digest.update(little_endian.data)
    return digest.hexdigest()


def read(entry: Entry, path: Path) -> dict[str, NDArray[Any]]:
    """The arrays of a set's file, checked to be the published ones."""
    remedy = f"delete it, then `bali-benchmarks data fetch {entry.name}` gets it anew"
    try:
        with path.open("rb") as raw, np.load(raw, allow_pickle=False) as file:
            missing = [name for name in entry.arrays if name not in file.files]
            if missing:
                raise DataError(f"{str(path)!r} lacks the array {missing[0]}: {remedy}")
            arrays = {name: file[name] for name in entry.arrays}
    except (ValueError, EOFError, zipfile.BadZipFile) as error:
        raise DataError(f"{str(path)!r} is damaged or no .npz file ({error}): {remedy}") from error
    if fingerprint(arrays) != entry.fingerprint:
        raise DataError(f"{str(path)!r} does not hold the published data of {entry.name!r}: {remedy}")
    return arrays


def write(path: Path, arrays: Arrays) -> None:
    """Write in one move: there is never an incomplete file under this name."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path) as file:
        np.savez_compressed(file, allow_pickle=False, **arrays)
