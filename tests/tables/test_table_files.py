"""Tables in files: CSV and Parquet, whole and in chunks, and files that are neither."""

from __future__ import annotations

import gzip
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from pyarrow import parquet

from bali.tables.errors import TableError
from bali.tables.opening import open_table
from bali.tables.writing import prediction_writer


def whole(path: Path) -> pd.DataFrame:
    table = open_table(path)
    return table.read(table.columns)


def in_chunks(path: Path) -> pd.DataFrame:
    table = open_table(path)
    return pd.concat(table.chunks(table.columns, [], 10))


def csv_file(folder: Path, text: str, name: str = "t.csv") -> Path:
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return path


# --- files ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("delimiter", [",", ";", "\t", "|"])
def test_the_delimiter_is_taken_from_the_header(tmp_path: Path, delimiter: str) -> None:
    table = open_table(csv_file(tmp_path, f"a{delimiter}b\n1{delimiter}x\n2{delimiter}y\n"))
    frame = table.read(table.columns)
    assert table.columns == ["a", "b"]
    assert frame.to_dict("list") == {"a": [1, 2], "b": ["x", "y"]}
    assert list(frame.index) == [1, 2]


def test_csv_may_be_compressed_have_a_byte_order_mark_or_another_encoding(tmp_path: Path) -> None:
    (tmp_path / "a.csv.gz").write_bytes(gzip.compress("größe,b\n1,é\n".encode()))
    (tmp_path / "b.csv").write_bytes("größe,b\n1,é\n".encode("utf-8-sig"))
    (tmp_path / "c.csv").write_bytes("größe,b\n1,é\n".encode("latin-1"))
    (tmp_path / "d.csv").write_bytes("größe,b\n1,é\n".encode("utf-16"))
    for name, encoding in {"a.csv.gz": "utf-8", "b.csv": "UTF8", "c.csv": "latin-1", "d.csv": "utf-16"}.items():
        table = open_table(tmp_path / name, encoding)
        assert table.read(table.columns).to_dict("list") == {"größe": [1], "b": ["é"]}


def test_chunks_are_the_whole(tmp_path: Path) -> None:
    frame = pd.DataFrame({"a": np.arange(25) / 4, "b": [f"0{i % 3}" for i in range(25)], "c": range(25)})
    frame.to_csv(tmp_path / "t.csv", index=False)
    frame.to_parquet(tmp_path / "t.parquet", row_group_size=7)
    for name in ("t.csv", "t.parquet"):
        table = open_table(tmp_path / name)
        whole = table.read(["a", "b"], ["b"])
        pieces = list(table.chunks(["a", "b"], ["b"], 10))
        assert max(map(len, pieces)) <= 10
        pd.testing.assert_frame_equal(pd.concat(pieces), whole)
        assert whole["b"].tolist() == frame["b"].tolist()
        assert whole.index.tolist() == list(range(1, 26))


@pytest.mark.parametrize(
    ("content", "name", "message"),
    [
        (b"", "t.csv", "is empty"),
        (b"\n\n", "t.csv", "is empty"),
        (b"a,b,a\n1,2,3\n", "t.csv", "more than one column called 'a'"),
        ("a,ö\n1,2\n".encode("latin-1"), "t.csv", "not UTF-8 .byte 0xf6.: .* --encoding latin-1"),
        ("a,b\n1,2\n".encode("utf-16"), "t.csv", "not UTF-8 .* --encoding utf-16"),
        (b"a,b\n1,2,3\n", "t.csv", "more fields than the header"),
        (b"a,b\n1,2\n3,4,5\n", "t.csv", "Expected 2 fields in line 3, saw 3"),
        (b"PK\x03\x04rest", "t.xlsx", "export the table as CSV"),
        (b"PAR1 and nothing more", "t.parquet", "truncated or not a Parquet file"),
        (b"a,b\n1,2\n", "t.parquet", "truncated or not a Parquet file"),
        (gzip.compress(b"a,b\n1,2\n", mtime=0)[:-9], "t.csv.gz", "not a complete gzip file"),
    ],
)
def test_files_that_are_not_tables(tmp_path: Path, content: bytes, name: str, message: str) -> None:
    (tmp_path / name).write_bytes(content)
    for read in (whole, in_chunks):
        with pytest.raises(TableError, match=message):
            read(tmp_path / name)


def test_a_bad_byte_far_down_is_found(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_bytes(b"a,b\n" + b"1,x\n" * 100_000 + b"2,\xe9\n")
    table = open_table(tmp_path / "t.csv")
    with pytest.raises(TableError, match="not UTF-8"):
        list(table.chunks(["a", "b"], ["b"], 1000))


def test_truncated_parquet(tmp_path: Path) -> None:
    pd.DataFrame({"a": np.random.default_rng(0).normal(size=5000)}).to_parquet(tmp_path / "t.parquet")
    content = (tmp_path / "t.parquet").read_bytes()
    (tmp_path / "t.parquet").write_bytes(content[: len(content) // 2])
    with pytest.raises(TableError, match="truncated or not a Parquet file"):
        open_table(tmp_path / "t.parquet")


def test_folders_missing_files_and_unknown_encodings(tmp_path: Path) -> None:
    with pytest.raises(TableError, match="is a folder"):
        open_table(tmp_path)
    with pytest.raises(TableError, match="no file at"):
        open_table(tmp_path / "none.csv")
    with pytest.raises(TableError, match="no encoding is called 'klingon'"):
        open_table(csv_file(tmp_path, "a\n1\n"), "klingon")


def test_nested_parquet_columns_are_refused_only_if_used(tmp_path: Path) -> None:
    parquet.write_table(pa.table({"a": [1.5], "b": [[1, 2]]}), tmp_path / "t.parquet")
    table = open_table(tmp_path / "t.parquet")
    with pytest.raises(TableError, match=r"list.*'b'.*--drop b"):
        table.read(["a", "b"])
    assert table.read(["a"]).to_dict("list") == {"a": [1.5]}


# --- writing ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["p.csv", "p.parquet"])
def test_predictions_are_written_in_pieces(tmp_path: Path, name: str) -> None:
    pieces = [pd.DataFrame({"row": [i, i + 1], "class": ['say "a, b"', "c"], "p": [0.1, 1e-12]}) for i in (1, 3)]
    with prediction_writer(str(tmp_path / name)) as write:
        for piece in pieces:
            write(piece)
        assert not (tmp_path / name).exists()
    read = pd.read_csv(tmp_path / name) if name.endswith("csv") else pd.read_parquet(tmp_path / name)
    pd.testing.assert_frame_equal(read, pd.concat(pieces, ignore_index=True))
    assert [path.name for path in tmp_path.iterdir()] == [name]


def test_nothing_is_left_when_writing_fails(tmp_path: Path) -> None:
    (tmp_path / "p.csv").write_text("old")
    frames = [pd.DataFrame({"row": [1]}), pd.DataFrame({"row": [object()]})]
    with pytest.raises(pa.ArrowInvalid), prediction_writer(str(tmp_path / "p.csv")) as write:
        list(map(write, frames))
    assert [path.name for path in tmp_path.iterdir()] == ["p.csv"]
    assert (tmp_path / "p.csv").read_text() == "old"
    for bad in (tmp_path, tmp_path / "no" / "p.csv"):
        with pytest.raises(TableError, match="folder"), prediction_writer(str(bad)):
            pass


def test_a_pipe_is_written_to_and_not_replaced(tmp_path: Path) -> None:
    pipe, link = tmp_path / "pipe", tmp_path / "link.csv"
    os.mkfifo(pipe)
    with ThreadPoolExecutor() as pool:
        received = pool.submit(pipe.read_text)
        with prediction_writer(str(pipe)) as write:
            write(pd.DataFrame({"row": [1]}))
        assert received.result() == "row\n1\n"
    assert pipe.is_fifo()
    (tmp_path / "p.csv").write_text("old")
    link.symlink_to(tmp_path / "p.csv")
    with prediction_writer(str(link)) as write:
        write(pd.DataFrame({"row": [1]}))
    assert link.is_symlink()
    assert (tmp_path / "p.csv").read_text() == "row\n1\n"


@pytest.mark.parametrize("ending", ["csv", "parquet"])
def test_a_zero_byte_in_a_column_name_is_told(ending: str, tmp_path: Path) -> None:
    """Tables drop it from the end of a name, and the column would not be found again."""
    path, frame = tmp_path / f"t.{ending}", pd.DataFrame({"x": [1.0, 2.0], "name\0": [3.0, 4.0]})
    frame.to_csv(path, index=False) if ending == "csv" else frame.to_parquet(path, index=False)
    with pytest.raises(TableError, match="zero byte"):
        open_table(path)
