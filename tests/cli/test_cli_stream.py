"""`bali predict` reads and writes piece by piece: its memory does not grow with the file."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from pyarrow import csv, parquet

from support.houses import QUICK, run

MEGABYTE = 2**20
N_COLUMNS = 10

#: Runs predictions one after the other; prints the greatest memory the process has used after each, in bytes.
PROGRAM = """
import json, resource, sys
from bali.cli.app import app

peaks = []
for arguments in json.loads(sys.argv[1]):
    app(arguments, standalone_mode=False)
    peaks.append(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024)
print(json.dumps(peaks))
"""


def rows(n: int, first: int = 0) -> pa.Table:
    rng = np.random.default_rng(first)
    columns = {f"x{i}": rng.normal(size=n).round(6) for i in range(N_COLUMNS)}
    town = np.array(["Ulm", "Köln", "Jena"])[rng.integers(0, 3, n)]
    return pa.table(columns | {"town": town, "y": 3 * columns["x0"] + np.sin(columns["x1"]) + rng.normal(size=n)})


def write_csv(path: Path, n: int, at_once: int = 100_000) -> Path:
    with csv.CSVWriter(path, rows(1).schema) as writer:
        for first in range(0, n, at_once):
            writer.write_table(rows(min(at_once, n - first), first))
    return path


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("stream")
    write_csv(folder / "train.csv", 1000)
    assert run("fit", folder / "train.csv", "--target", "y", *QUICK, "--out", folder / "m").exit_code == 0
    return folder / "m"


def n_lines(path: Path) -> int:
    with path.open() as file:
        return sum(1 for _ in file)


def peaks(*commands: list[object]) -> list[int]:
    arguments = json.dumps([[*map(str, command), "--quiet"] for command in commands])
    process = subprocess.run([sys.executable, "-c", PROGRAM, arguments], capture_output=True, text=True, check=True)
    found: list[int] = json.loads(process.stdout)
    return found


def test_memory_does_not_grow_with_the_file(tmp_path: Path, model: Path) -> None:
    few, many = write_csv(tmp_path / "few.csv", 20_000), write_csv(tmp_path / "many.csv", 300_000)
    command: list[object] = ["predict", model, "--samples", 4, "--out", tmp_path / "p.csv"]
    after_few, after_many = peaks([*command, few], [*command, many])
    assert after_many - after_few < 32 * MEGABYTE  # the table alone, as numbers, is 50
    assert n_lines(tmp_path / "p.csv") == 300_001


def test_pieces_make_the_same_predictions_as_the_whole(tmp_path: Path, model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = write_csv(tmp_path / "t.csv", 1000)
    parquet.write_table(csv.read_csv(file), tmp_path / "t.parquet", row_group_size=300)
    command = ("predict", model, "--samples", 8, "--out")
    assert run(*command, tmp_path / "whole.csv", file).exit_code == 0
    monkeypatch.setattr("bali.tables.table_model.NUMBERS_AT_ONCE", 8 * 128)
    assert run(*command, tmp_path / "pieces.csv", file).exit_code == 0
    assert run(*command, tmp_path / "parquet.csv", tmp_path / "t.parquet").exit_code == 0
    whole, *others = (pd.read_csv(tmp_path / f"{name}.csv") for name in ("whole", "pieces", "parquet"))
    for other in others:
        pd.testing.assert_frame_equal(other, whole, rtol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_five_million_rows_in_two_gigabytes(tmp_path: Path, model: Path, kind: str) -> None:
    n = 5_000_000
    file = write_csv(tmp_path / "t.csv", n)
    if kind == "parquet":
        with parquet.ParquetWriter(tmp_path / "t.parquet", rows(1).schema) as writer:
            for batch in csv.open_csv(file):
                writer.write_table(pa.Table.from_batches([batch]).cast(writer.schema), row_group_size=1_000_000)
        file = tmp_path / "t.parquet"
    (peak,) = peaks(["predict", model, file, "--samples", 16, "--out", tmp_path / f"p.{kind}"])
    assert peak < 2 * 1024 * MEGABYTE
    if kind == "parquet":
        assert parquet.ParquetFile(tmp_path / "p.parquet").metadata.num_rows == n
    else:
        assert n_lines(tmp_path / "p.csv") == n + 1
