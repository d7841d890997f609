"""Bad input: exit code 1, one line that says what is wrong and what to do, and nothing written."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

from bali import BALIRegressor, files
from support.houses import houses, run, write_houses

Change = Callable[[pd.DataFrame], pd.DataFrame]


@pytest.fixture(scope="module")
def model(house_models: Path) -> Path:
    return house_models / "price"


def refused(message: str, folder: Path, *arguments: object) -> None:
    """The command ends with 1 and this message, on one line, and leaves the folder as it was."""
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    result = run(*arguments)
    assert result.exit_code == 1, result.output
    line = result.stderr.splitlines()[-1]
    assert line.startswith("error: ")
    assert re.search(message, line), line
    assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == before
    assert "Traceback" not in result.output


def cell(column: str, row: int, value: Any) -> Change:
    def change(frame: pd.DataFrame) -> pd.DataFrame:
        cells = frame[column].astype(object).tolist()
        cells[row - 1] = value
        return frame.assign(**{column: cells})

    return change


TABLES: dict[str, tuple[Change, str]] = {
    "infinite number": (cell("size", 7, np.inf), "column 'size' is infinite in row 7; correct that cell"),
    "infinite target": (cell("price", 4, "-inf"), "column 'price' is infinite in row 4"),
    "text among numbers": (cell("size", 5, "large"), "column 'size' holds numbers, but 'large' in row 5 .*--category size"),
    "text among targets": (cell("price", 5, "dear"), "column 'price' holds numbers, but 'dear' in row 5"),
    "no such date": (cell("sold", 9, "2024-02-31"), "column 'sold' holds dates, but '2024-02-31' in row 9"),
    "dates of another kind": (lambda t: t.assign(sold="31.12.2023"), "dates like '31.12.2023'.*--drop sold"),
    "no target": (lambda t: t.drop(columns="price"), "no column 'price' .--target.; its columns are 'house', 'size'"),
    "empty target": (lambda t: t.assign(price=np.nan), "0 rows with a value of 'price'; at least 2 are needed"),
    "constant target": (lambda t: t.assign(price=3.5), "column 'price' is 3.5 in every row"),
    "one class": (lambda t: t.assign(price="high"), "'high' in every row: a classification needs two classes"),
    "a class a row": (lambda t: t.assign(price=t.house), "too many to be classes"),
    "few rows": (lambda t: t.head(1), "has 1 row; at least 2 are needed"),
    "header only": (lambda t: t.head(0), "has 0 rows; at least 2 are needed"),
    "empty column": (lambda t: t.assign(size=np.nan), "column 'size' has no values at all; leave out with --drop size"),
    "identifiers": (lambda t: t.assign(town=t.house), "column 'town' has a different text in nearly every row.*--drop town"),
    "only the target": (lambda t: t[["price", "dear", "house"]], "no columns are left to learn from"),
}


@pytest.mark.parametrize("case", TABLES)
def test_tables_that_cannot_be_learned_from(tmp_path: Path, case: str) -> None:
    change, message = TABLES[case]
    change(houses()).to_csv(tmp_path / "t.csv", index=False)
    arguments = ("--target", "price", "--drop", "house", "--drop", "dear", "--out", tmp_path / "m")
    refused(message, tmp_path, "fit", tmp_path / "t.csv", *arguments)


FILES: dict[str, tuple[str, bytes, str]] = {
    "empty": ("t.csv", b"", "is empty"),
    "other encoding": ("t.csv", "größe,price\n1,2\n".encode("latin-1"), "is not UTF-8 .byte 0xf6.: .*--encoding latin-1"),
    "same name twice": ("t.csv", b"a,price,a\n1,2,3\n", "more than one column called 'a'; rename"),
    "too many fields": ("t.csv", f"{','.join(map(str, houses()))}\n1,2\n{'x,' * 9}\n".encode(), "line 3, saw 10"),
    "truncated parquet": ("t.parquet", b"PAR1" + b"\0" * 50, "truncated or not a Parquet file"),
    "spreadsheet": ("t.xlsx", b"PK\x03\x04", "export the table as CSV"),
}


@pytest.mark.parametrize("case", FILES)
def test_files_that_cannot_be_read(tmp_path: Path, model: Path, case: str) -> None:
    name, content, message = FILES[case]
    (tmp_path / name).write_bytes(content)
    refused(message, tmp_path, "fit", tmp_path / name, "--target", "price", "--out", tmp_path / "m")
    refused(message, tmp_path, "predict", model, tmp_path / name, "--out", tmp_path / "p.csv")
    refused(message, tmp_path, "evaluate", model, tmp_path / name)


def test_paths_that_are_not_files(tmp_path: Path, model: Path) -> None:
    for path, message in ((tmp_path, "is a folder"), (tmp_path / "no.csv", "no file at")):
        refused(message, tmp_path, "fit", path, "--target", "y", "--out", tmp_path / "m")
        refused(message, tmp_path, "predict", model, path, "--out", tmp_path / "p.csv")
    file = write_houses(tmp_path)
    refused("no folder at", tmp_path, "fit", file, "--target", "price", "--out", tmp_path / "a" / "b")
    refused("is a file; name another folder", tmp_path, "fit", file, "--target", "price", "--out", file)


def test_names_that_are_not_columns(tmp_path: Path) -> None:
    file = write_houses(tmp_path)
    for option in ("--drop", "--category", "--id"):
        refused(f"no column 'colour' .{option}.", tmp_path, "fit", file, "--target", "price", option, "colour")
    refused("is the target and cannot be", tmp_path, "fit", file, "--target", "price", "--drop", "price")


NEW_TABLES: dict[str, tuple[Change, str]] = {
    "missing columns": (lambda t: t.drop(columns=["size", "town"]), "lacks 'size', 'town', which the model needs"),
    "text among numbers": (cell("size", 70, "?"), "column 'size' holds numbers, but '.' in row 70 is not one"),
    "infinite number": (cell("rooms", 70, np.inf), "column 'rooms' is infinite in row 70"),
    "no date": (cell("sold", 70, "soon"), "column 'sold' holds dates, but 'soon' in row 70"),
    "header only": (lambda t: t.head(0), "no rows"),
}


@pytest.mark.parametrize("case", NEW_TABLES)
def test_tables_that_cannot_be_predicted(tmp_path: Path, model: Path, case: str) -> None:
    change, message = NEW_TABLES[case]
    change(houses()).to_csv(tmp_path / "t.csv", index=False)
    refused(message, tmp_path, "predict", model, tmp_path / "t.csv", "--out", tmp_path / "p.csv")
    refused(message, tmp_path, "evaluate", model, tmp_path / "t.csv")


def test_tables_that_cannot_be_scored(tmp_path: Path, model: Path) -> None:
    houses().drop(columns="price").to_csv(tmp_path / "t.csv", index=False)
    refused("lacks 'price'", tmp_path, "evaluate", model, tmp_path / "t.csv")
    houses().assign(price=None).to_csv(tmp_path / "t.csv", index=False)
    refused("no rows with a value of 'price'", tmp_path, "evaluate", model, tmp_path / "t.csv")


def test_what_is_read_is_not_overwritten(tmp_path: Path, model: Path) -> None:
    file = write_houses(tmp_path)
    refused("would overwrite what is read", tmp_path, "predict", model, file, "--out", file)
    refused("would overwrite what is read", tmp_path, "predict", model, file, "--out", model / "model.bali")
    refused("would overwrite the model", tmp_path, "report", model, "--out", model / "model.bali")
    refused("is a folder", tmp_path, "predict", model, file, "--out", tmp_path)
    refused("no folder at", tmp_path, "predict", model, file, "--out", tmp_path / "no" / "p.csv")


@pytest.mark.filterwarnings("ignore:fitted to 3 distinct rows")
def test_models_of_another_kind(tmp_path: Path) -> None:
    file = write_houses(tmp_path)
    (tmp_path / "empty").mkdir()
    (tmp_path / "text.bali").write_text("not a model")
    files.write(tmp_path / "other.bali", "inference", {}, {"a": torch.zeros(1)})
    estimator = BALIRegressor(max_iter=1, n_members=1).fit(np.eye(3), np.arange(3.0))
    estimator.save(tmp_path / "python.bali")
    files.write(tmp_path / "older.bali", "estimator", {"class": "BALIRegressor"}, {"a": torch.zeros(1)})
    models = {
        "none": "no model at",
        "empty": "holds no model.bali; `bali fit` writes one",
        "text.bali": "truncated or not a bali file",
        "houses.csv": "truncated or not a bali file",
        "other.bali": "holds a 'inference', expected",
        "python.bali": "saved from Python",
        "older.bali": "damaged or was written by another version of bali .* train the model again",
    }
    for name, message in models.items():
        refused(message, tmp_path, "predict", tmp_path / name, file, "--out", tmp_path / "p.csv")
        refused(message, tmp_path, "evaluate", tmp_path / name, file)
        refused(message, tmp_path, "report", tmp_path / name, "--out", tmp_path / "r.html")
