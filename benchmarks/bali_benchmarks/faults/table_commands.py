"""The commands that faults are tried on, and whether what they wrote is whole."""

from __future__ import annotations

import atexit
import json
import shutil
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from typer.testing import CliRunner

from bali.cli.app import app
from bali.tables.table_model import TableModel, load_table_model
from bali_benchmarks.faults.campaign import FaultError
from bali_benchmarks.faults.killing import run_in_fork

TABLE, MODEL, OUT = "t.csv", "m", "p.csv"
N_ROWS = 30
_FIT = ("--target", "y", "--max-iter", 2, "--members", 1)
FILES = {"model.bali", "report.html", "metrics.json"}


def fit(folder: Path, seed: int, *, force: bool) -> list[Any]:
    return ["fit", folder / TABLE, *_FIT, "--seed", seed, "--out", folder / MODEL, *(["--force"] if force else [])]


def predict(folder: Path, out: str = OUT, coverage: float = 0.9) -> list[Any]:
    words = ["predict", folder / MODEL, folder / TABLE, "--samples", 8, "--coverage", coverage]
    return [*words, "--out", folder / out]


def command(words: list[Any]) -> str:
    """Its one line if it says that it failed, and nothing if it did what it should; anything else is a fault."""
    result = CliRunner().invoke(app, [*map(str, words), "--quiet"])
    if isinstance(result.exception, Exception):
        raise FaultError(f"{words[0]} ended with {type(result.exception).__name__}: {str(result.exception)[:200]}")
    line = result.stderr
    if result.exit_code not in (0, 1) or (result.exit_code == 1) != line.startswith("error: ") or line.count("\n") > 1:
        raise FaultError(f"{words[0]} ended with {result.exit_code} and said {line[:200]!r}")
    return line.strip()


def finished(words: list[Any], *, may_fail: bool = False) -> None:
    """In a process of its own."""

    def work() -> None:
        said = command(words)
        if said and not may_fail:
            raise FaultError(said)

    if run_in_fork(work):
        raise FaultError(f"the command {words[0]} did not end well")


def write_table(folder: Path) -> None:
    x = np.arange(float(N_ROWS))
    pd.DataFrame({"x": x, "z": np.cos(x), "y": np.sin(x)}).to_csv(folder / TABLE, index=False)


@cache
def older_model() -> Path:
    folder = Path(tempfile.mkdtemp())
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    write_table(folder)
    finished(fit(folder, 1, force=False))
    return folder / MODEL


def check_model(model: Path) -> TableModel:
    """All files of it are there, whole, and of one fit."""
    loaded = load_table_model(model)  # which is whole, or an error
    found = {path.name for path in model.iterdir()}
    if found != FILES or "</html>" not in (model / "report.html").read_text():
        raise FaultError(f"a model of {sorted(found)}")
    if json.loads((model / "metrics.json").read_text())["seconds"] != loaded.record["seconds"]:
        raise FaultError("a model with the scores of another")
    return loaded


def check_predictions(out: Path) -> bool:
    """Whether they are new; of as many rows as there are."""
    if out.read_bytes() == b"old\n":
        return False
    frame = pd.read_parquet(out) if out.suffix == ".parquet" else pd.read_csv(out)
    if len(frame) != N_ROWS or frame.isna().any(axis=None):
        raise FaultError(f"predictions of {len(frame)} rows")
    return True


def check_alone(folder: Path, *wanted: str) -> None:
    left = {path.name for path in folder.iterdir()} - set(wanted)
    if left:
        raise FaultError(f"left behind {sorted(left)}")


@cache
def warm() -> None:
    """All that a command imports, once and not in every fork."""
    import bali.cli.results
    import bali.cli.talk
    import bali.tables.html_report
    import bali.tables.table_training
    import bali.tables.writing  # noqa: F401
