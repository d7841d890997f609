"""Damaged CSV and Parquet files: refused with one line, or read as what is written in them."""

from __future__ import annotations

import csv
import gzip
import io
import random
from pathlib import Path

import numpy as np
import pandas as pd

from bali.tables.cells import TableEncoder
from bali.tables.errors import TableError
from bali.tables.opening import CsvFile, Table, open_table
from bali.tables.table_training import FitOptions, read_training_table
from bali_benchmarks.faults.campaign import FaultError

LONGEST_MESSAGE = 1500
#: What is put into files, beside single bytes.
_TOKENS = (
    b"\0", b'"', b",", b";", b"\n", b"\r", b"\r\n",
    b"\t", b"inf", b"-1e400", b"1e99", b"1e-320", b"NaN", b"=1+1", b"'", b"\\",
    b"\xef\xbb\xbf", b"\xff\xfe", b"true", b"2024-02-30", b"1,5", b"x" * 5000, b'""', b" ", b"\n\n", b"0x1f", b"1_000",
    b"--",
)  # fmt: skip

#: What pandas documents to be missing.
_MISSING = {
    "", "#N/A", "#N/A N/A", "#NA", "-1.#IND", "-1.#QNAN", "-NaN", "-nan", "1.#IND", "1.#QNAN", "<NA>", "N/A", "NA", "NULL",
    "NaN", "None", "n/a", "nan", "null",
}  # fmt: skip


def mutated_table(seed: int, folder: Path) -> str:
    """One damaged file, read as `bali fit` and as `bali predict` read it."""
    rng = random.Random(seed)
    ending = rng.choice(["csv", "csv", "csv.gz", "parquet"])
    path = folder / f"t.{ending}"
    path.write_bytes(_damaged(_written(ending, rng), rng, inside=ending == "csv"))
    try:
        table = open_table(path)
        frame = table.read(table.columns, ["text"])
        _same_in_pieces(table, frame)
        if isinstance(table, CsvFile):
            _as_written(table, frame)
        target = rng.choice(["y", "label"])
        data = read_training_table(table, FitOptions(target))
        features = TableEncoder.learn(data.frame, data.kinds).transform(data.frame)
    except TableError as error:
        if "\n" in str(error) or len(str(error)) > LONGEST_MESSAGE:
            raise FaultError(f"a message of {len(str(error)):,} characters: {error}") from error
        return "refused"
    if not np.isfinite(features.to_numpy()).all():
        raise FaultError("features that are not finite")
    return "read"


def _written(ending: str, rng: random.Random) -> bytes:
    n = rng.randint(2, 40)
    numbers = [round(rng.gauss(0, 1) * 10 ** rng.randint(-3, 6), 3) for _ in range(n)]
    frame = pd.DataFrame(
        {
            "x": [None if rng.random() < 0.1 else number for number in numbers],
            "count": [rng.randint(0, 9) for _ in range(n)],
            "text": [rng.choice(["Ulm", "Köln", "a, b", 'say "so"', ""]) for _ in range(n)],
            "day": [f"2024-{rng.randint(1, 12):02d}-{rng.randint(1, 28):02d}" for _ in range(n)],
            "y": [rng.gauss(0, 1) for _ in range(n)],
            "label": [rng.choice("ab") for _ in range(n)],
        }
    )
    buffer = io.BytesIO()
    if ending == "parquet":
        frame.to_parquet(buffer, index=False)
        return buffer.getvalue()
    frame.to_csv(buffer, index=False, sep=rng.choice(",;\t|"))
    return gzip.compress(buffer.getvalue()) if ending == "csv.gz" else buffer.getvalue()


def _damaged(content: bytes, rng: random.Random, *, inside: bool) -> bytes:
    data = bytearray(content)
    for _ in range(rng.randint(1, 4)):
        at = rng.randrange(len(data) + 1)
        # The end of a Parquet file, and the start of any, say what the rest is.
        at = rng.choice([at, at, min(rng.randrange(60), len(data)), max(len(data) - rng.randrange(1, 400), 0)])
        length = rng.randint(1, 40)
        match rng.choice(
            ["flip", "flip", "token", "cut", "repeat", "end"] if inside else ["flip", "flip", "flip", "cut", "end"]
        ):
            case "flip" if at < len(data):
                data[at] ^= 1 << rng.randrange(8)
            case "token":
                data[at:at] = rng.choice(_TOKENS)
            case "cut":
                del data[at : at + length]
            case "repeat":
                data[at:at] = data[at : at + length]
            case "end" if rng.random() < 0.3:
                del data[at:]
    return bytes(data)


def _same_in_pieces(table: Table, frame: pd.DataFrame) -> None:
    """`predict` reads rows in pieces: as many, and the same."""
    pieces = list(table.chunks(table.columns, ["text"], 7))
    n_rows = sum(len(piece) for piece in pieces)
    if n_rows != len(frame):
        raise FaultError(f"{len(frame)} rows at once, {n_rows} in pieces")


def _as_written(table: CsvFile, frame: pd.DataFrame) -> None:
    """Python's own reader finds the same cells."""
    with table.source.open_text() as file:
        text = file.read().decode("utf-8-sig")
    lines = csv.reader(io.StringIO(text, newline=""), delimiter=table.delimiter, skipinitialspace=True)
    rows = [line for line in lines if any(cell.strip() for cell in line)][1:]
    kept = frame[frame.notna().any(axis=1)]
    rows = [row for row in rows if any(_is_known(cell) for cell in row)]
    if len(rows) != len(kept):
        raise FaultError(f"{len(kept)} rows are read, {len(rows)} are written")
    for place, name in enumerate(table.columns):
        if not pd.api.types.is_numeric_dtype(frame[name]) or pd.api.types.is_bool_dtype(frame[name]):
            continue
        for value, row in zip(kept[name], rows, strict=True):
            cell = row[place].strip() if place < len(row) else ""
            if _is_known(cell) and not np.isclose(float(cell), value, rtol=1e-12, atol=0.0):
                raise FaultError(f"{cell!r} of column {name!r} is read as {value}")


def _is_known(cell: str) -> bool:
    return cell.strip() not in _MISSING
