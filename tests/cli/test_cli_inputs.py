"""What comes in and goes out at the edges: pipes, damaged files, very long and very large things, formulas."""

from __future__ import annotations

import gzip
import math
import os
import random
import shutil
import threading
from contextlib import suppress
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

from bali import files
from bali.cli.app import app
from bali.tables import table_scores
from bali.tables.errors import TableError
from bali.tables.opening import open_table
from bali.tables.table_model import load_table_model
from bali.tables.writing import without_formulas
from support.houses import DEAR, PRICE, QUICK, houses, run, write_houses


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


@pytest.mark.parametrize("kind", ["date", "decimal", "truth", "category"])
def test_rows_can_be_named_by_any_column_of_a_parquet_file(tmp_path: Path, kind: str) -> None:
    n = len(houses())
    names: dict[str, list[Any]] = {
        "date": [None, *pd.date_range("2024-01-01", periods=n - 1)],
        "decimal": [Decimal(i) / 8 for i in range(n)],
        "truth": [True, None] * (n // 2),
        "category": list(pd.Categorical(["a", "b"] * (n // 2))),
    }
    houses().assign(house=names[kind]).to_parquet(tmp_path / "t.parquet")
    table, model = tmp_path / "t.parquet", tmp_path / "m"
    assert run("fit", table, *PRICE, *QUICK, "--id", "house", "--out", model).exit_code == 0
    rows = load_table_model(model).record["holdout"]["row"]
    assert {type(name) for name in rows} <= {str, bool, type(None)}
    assert run("report", model).exit_code == 0
    assert run("predict", model, table, "--id", "house", "--out", tmp_path / "p.csv").exit_code == 0
    assert len(pd.read_csv(tmp_path / "p.csv")) == n


def test_whole_numbers_of_any_length(tmp_path: Path) -> None:
    for column in ("size", "price"):
        changes: dict[str, Any] = {column: ["9" * 400, *map(str, houses().rooms[1:])]}
        file = write_houses(tmp_path, **changes)
        result = run("fit", file, *PRICE, "--out", tmp_path / "m")
        assert (result.exit_code, f"column '{column}' is infinite in row 1" in result.stderr) == (1, True)


@pytest.mark.parametrize("name", ["hex", "base64", "zlib", "no such", "x" * 500])
def test_encodings_that_are_none(tmp_path: Path, house_models: Path, name: str) -> None:
    result = run("predict", house_models / "price", write_houses(tmp_path), "--out", tmp_path / "p", "--encoding", name)
    assert (result.exit_code, "no encoding is called" in result.stderr) == (1, True)
    assert len(result.stderr) < 300


def test_links_in_a_circle(tmp_path: Path, house_models: Path) -> None:
    loop, file = tmp_path / "loop", write_houses(tmp_path)
    loop.symlink_to(loop)
    for command in (("predict", loop, file, "--out", "-"), ("predict", house_models / "price", loop, "--out", "-")):
        result = run(*command)
        assert (result.exit_code, result.stderr[:7], result.stderr.count("\n")) == (1, "error: ", 1)
    assert run("fit", file, *PRICE, *QUICK, "--out", loop).exit_code == 1
    assert run("predict", house_models / "price", file, "--out", loop).exit_code == 0
    assert len(pd.read_csv(loop)) == len(houses())


def test_codes_that_a_terminal_would_obey_are_not_printed(tmp_path: Path, house_models: Path) -> None:
    file = write_houses(tmp_path).rename(tmp_path / "\x1b[31m.csv")
    fitted = run("fit", file, *PRICE, *QUICK, "--out", tmp_path / "\x1b]0;m\x07")
    assert fitted.exit_code == 0
    missing = run("predict", house_models / "price", tmp_path / "\x1b[2J.csv", "--out", tmp_path / "p.csv")
    assert "\x1b" not in fitted.output + missing.output
    assert "\\x1b[31m.csv: 80 rows" in fitted.stdout


@pytest.mark.parametrize("mode", [0o600, 0o640, 0o444])
def test_who_may_read_a_file_may_read_what_takes_its_place(tmp_path: Path, house_models: Path, mode: int) -> None:
    out, model, file = tmp_path / "p.csv", tmp_path / "m", write_houses(tmp_path)
    out.touch()
    shutil.copytree(house_models / "price", model)
    (model / "report.html").chmod(mode)
    model.chmod(0o700)
    out.chmod(mode)
    assert run("predict", house_models / "price", file, "--out", out).exit_code == 0
    assert run("report", model).exit_code == 0
    assert run("fit", file, *PRICE, *QUICK, "--out", model, "--force").exit_code == 0
    assert [path.stat().st_mode & 0o777 for path in (out, model)] == [mode, 0o700]
    assert run("predict", model, file, "--out", tmp_path / "new.csv").exit_code == 0
    (tmp_path / "made by the system").touch()
    modes = {path.stat().st_mode & 0o777 for path in (tmp_path / "new.csv", tmp_path / "made by the system")}
    assert len(modes) == 1


@pytest.mark.parametrize("model", ["price", "dear"])
def test_a_record_that_somebody_made_is_refused_or_reported(tmp_path: Path, house_models: Path, model: str) -> None:
    """The report is made from it: no traceback, and no text that a browser would run."""
    original, tensors = files.read(house_models / model / "model.bali", "estimator")
    rng, path, refused = random.Random(0), tmp_path / "model.bali", 0
    junk: list[Any] = [
        None,
        True,
        -1,
        1e308,
        math.nan,
        "",
        "<script>x()</script>",
        '" onload="x',
        [],
        [[]],
        {},
        {"a": []},
        [None] * 3,
    ]
    record = original["extra"]["record"]
    places = [(record, name) for name in record] + [(record["holdout"], name) for name in record["holdout"]]
    for container, name in places:
        kept = container[name]
        container[name] = rng.choice([*junk, [rng.choice(junk), *kept[1:]] if isinstance(kept, list) else {}])
        files.write(path, "estimator", original, tensors)
        result = run("report", path, "--out", tmp_path / "r.html")
        container[name] = kept
        assert result.exit_code in (0, 1), result.output
        refused += result.exit_code
        page = (tmp_path / "r.html").read_text() if result.exit_code == 0 else ""
        assert "<script>" not in page
        assert '" onload="' not in page
    assert refused > len(places) / 2


def test_a_record_of_many_classes_stays_short(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table_scores, "MAX_NUMBERS", 6)
    assert run("fit", write_houses(tmp_path), *DEAR, *QUICK, "--out", tmp_path / "m").exit_code == 0
    record = load_table_model(tmp_path / "m").record
    assert (record["n_holdout"], len(record["holdout"]["row"])) == (8, 3)


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
