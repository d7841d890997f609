"""From arrays to the formats of the sources and back, without a changed bit."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from bali_benchmarks.datasets import NAMES, storage
from bali_benchmarks.datasets.registry import ENTRIES
from support.small_sets import LIKE, Arrays, arrays_like, original_files

REAL = list(NAMES) if "BALI_DATA" in os.environ else []
REAL_FOLDER = os.environ.get("BALI_DATA", "")


@pytest.mark.parametrize(("size", "name"), [*(("small", name) for name in LIKE), *(("real", name) for name in REAL)])
def test_every_value_survives_the_original_format(size: str, name: str, tmp_path: Path) -> None:
    if size == "small":
        arrays: Arrays = arrays_like(name)
    else:
        arrays = storage.read(ENTRIES[name], Path(REAL_FOLDER) / ENTRIES[name].path)
    for file, content in original_files(name, arrays).items():
        (tmp_path / file).write_bytes(content)
    assert storage.fingerprint(ENTRIES[name].parse(tmp_path)) == storage.fingerprint(arrays)
