"""What comes in and goes out at the edges: pipes, damaged files, very long and very large things, formulas."""

from __future__ import annotations

import gzip
import os
import threading
from contextlib import suppress
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

from bali.cli.app import app
from bali.tables.errors import TableError
from bali.tables.opening import open_table
from bali.tables.writing import without_formulas
from support.houses import PRICE, QUICK, houses, run, write_houses


@pytest.mark.parametrize("as_gzip", [False, True])
def test_standard_input(tmp_path: Path, house_models: Path, as_gzip: bool) -> None:
    content = (house_models / "houses.csv").read_bytes()
    arguments = ["predict", str(house_models / "price"), "-", "--out", "-", "--quiet"]
    result = CliRunner().invoke(app, arguments, input=gzip.compress(content) if as_gzip else content)
    assert result.exit_code == 0
    assert result.stdout == run("predict", house_models / "price", house_models / "houses.csv", "--out", "-", "-q").stdout
    fitted = CliRunner().invoke(app, ["fit", "-", *PRICE, *QUICK, "--out", str(tmp_path / "m")], input=content)
    assert fitted.exit_code == 0
    assert "standard input: 80 rows" in fitted.stdout
    nameless = CliRunner().invoke(app, ["fit", "-", *PRICE], input=content)
    assert (nameless.exit_code, "--out" in nameless.stderr) == (1, True)


@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_a_named_pipe_is_read_whole(tmp_path: Path, kind: str) -> None:
    file, pipe = tmp_path / f"t.{kind}", tmp_path / "pipe"
    houses().to_csv(file, index=False) if kind == "csv" else houses().to_parquet(file, index=False)
    os.mkfifo(pipe)
    writer = threading.Thread(target=lambda: pipe.write_bytes(file.read_bytes()))
    writer.start()
    table, expected = open_table(pipe), open_table(file)
    writer.join()
    for _ in range(2):  # more than once
        pd.testing.assert_frame_equal(table.read(table.columns), expected.read(expected.columns))


def test_headers_that_are_none(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    for header in ("a" * 5_000_000 + ",b", "a" * 200_000 + ",b", '"a,b'):
        path.write_text(f"{header}\n1,2\n")
        with pytest.raises(TableError, match="header") as caught:
            open_table(path)
        assert len(str(caught.value)) < 300 + len(str(path))


def test_flipped_bytes(tmp_path: Path) -> None:
    whole = gzip.compress(houses().to_csv(index=False).encode())
    houses().to_parquet(tmp_path / "whole.parquet")
    columns = (tmp_path / "whole.parquet").read_bytes()
    cases = {f"{i}.csv.gz": (whole, i) for i in range(12, len(whole), len(whole) // 20)}
    cases |= {f"{i}.parquet": (columns, len(columns) - i) for i in range(9, 3000, 100)}
    for name, (content, place) in cases.items():
        damaged = bytearray(content)
        damaged[place] ^= 0x55
        (tmp_path / name).write_bytes(damaged)
        with suppress(TableError):  # and nothing else
            table = open_table(tmp_path / name)
            table.read(table.columns)


def test_a_very_long_cell_is_not_printed_whole(tmp_path: Path) -> None:
    file = write_houses(tmp_path, size=[*map(str, houses().rooms[:-1]), "x" * 1_000_000])
    result = run("fit", file, *PRICE, "--out", tmp_path / "m")
    assert result.exit_code == 1
    assert len(result.stderr) < 500
    assert "'… (1,000,000 characters) in row 80 is not one" in result.stderr


def test_targets_of_any_size_and_inputs_out_of_reach(tmp_path: Path) -> None:
    file = write_houses(tmp_path, price=houses().price * 1e97)
    assert run("fit", file, *PRICE, *QUICK, "--out", tmp_path / "m").exit_code == 0
    assert run("predict", tmp_path / "m", file, "--out", tmp_path / "p.csv").exit_code == 0
    predicted = pd.read_csv(tmp_path / "p.csv")
    assert np.isfinite(predicted.to_numpy()).all()
    assert np.corrcoef(predicted["mean"] / 1e97, houses().price)[0, 1] > 0.9
    size = [*houses()["size"][:-1], 1e90]
    far = run("predict", tmp_path / "m", write_houses(tmp_path, size=size), "--out", tmp_path / "p.csv")
    assert (far.exit_code, "column 'size' is 1e+90 in row 80, too far" in far.stderr) == (1, True)
    tiny = run("fit", write_houses(tmp_path, price=houses().price * 1e-200), *PRICE, "--out", tmp_path / "t")
    assert (tiny.exit_code, "write them in another unit" in tiny.stderr) == (1, True)


@pytest.mark.parametrize("n_rows", [2, 5, 19])
@pytest.mark.parametrize("target", ["price", "dear"])
def test_small_tables_are_fitted_without_scores(tmp_path: Path, n_rows: int, target: str) -> None:
    table = houses(n_rows).assign(dear=["yes", *["no"] * (n_rows - 1)])[["size", "rooms", target]]
    table.to_csv(tmp_path / "t.csv", index=False)
    result = run("fit", tmp_path / "t.csv", "--target", target, "--max-iter", 10, "--out", tmp_path / "m")
    assert result.exit_code == 0, result.output
    assert "no scores: there are too few rows" in result.stderr
    assert ("so few can tell neither" in result.stderr) == (n_rows < 10)
    assert run("predict", tmp_path / "m", tmp_path / "t.csv", "--out", tmp_path / "p.csv").exit_code == 0


def test_text_that_a_spreadsheet_would_run(tmp_path: Path, house_models: Path) -> None:
    names = ["=1+1", "@x", "-5", "plain", "+cmd", *houses().house[5:]]
    file = write_houses(tmp_path, house=names)
    command = ("predict", house_models / "price", file, "--id", "house", "--out", tmp_path / "p.csv")
    assert run(*command).exit_code == 0
    assert pd.read_csv(tmp_path / "p.csv")["house"][:5].tolist() == names[:5]
    assert run(*command, "--no-formulas").exit_code == 0
    assert pd.read_csv(tmp_path / "p.csv")["house"][:5].tolist() == ["'=1+1", "'@x", "-5", "plain", "'+cmd"]
    assert list(without_formulas(pd.DataFrame({"=a": [1.0]}))) == ["'=a"]
