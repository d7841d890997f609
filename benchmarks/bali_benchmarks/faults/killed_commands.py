"""Commands killed at any moment: the old or the new file is there, whole, and the next command leaves nothing else behind.

So are `save` of everything that has it and the checkpoints of `bali.fit`, see `killed_saves`.
"""

from __future__ import annotations

import atexit
import random
import shutil
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from bali.cli.app import app
from bali.tables import complete_writes
from bali.tables.table_model import load_table_model
from bali_benchmarks.faults.campaign import FaultError
from bali_benchmarks.faults.killed_saves import killed_checkpoint, killed_save
from bali_benchmarks.faults.killing import Moment, killed, run_in_fork

_FIT = ("--target", "y", "--max-iter", 2, "--members", 1)
_FILES = {"model.bali", "report.html", "metrics.json"}
#: About what a command does in its folder.
_MOST_EVENTS = {"fit": 25, "fit --force": 30, "predict": 12}
_LONGEST = 1.5  # seconds


def killed_work(seed: int, folder: Path) -> str:
    """Any of them."""
    return (killed_save if seed % 5 == 3 else killed_checkpoint if seed % 5 == 4 else killed_command)(seed, folder)


def killed_command(seed: int, folder: Path) -> str:
    """One command killed, and one after it that is not."""
    rng = random.Random(seed)
    kind = ["fit", "fit --force", "predict"][seed % 5 % 3]
    in_steps = rng.random() < 0.3  # as on systems that cannot exchange two folders at once
    moment = Moment.drawn(rng, _MOST_EVENTS[kind], _LONGEST, 20_000)
    _warm()
    _write(folder / "t.csv")
    model, out = folder / "m", folder / "p.csv"
    fit = ["fit", folder / "t.csv", *_FIT, "--seed", 2, "--out", model, *(["--force"] if kind != "fit" else [])]
    predict = ["predict", model, folder / "t.csv", "--samples", 8, "--out", out]
    out.write_text("old\n")
    if kind != "fit":
        shutil.copytree(_older_model(), model)
    command = predict if kind == "predict" else fit
    was_killed = killed(lambda: _run(command, in_steps=in_steps), folder, moment)
    if kind == "predict":
        _check_predictions(out)
    elif kind == "fit --force" or model.exists():
        if not in_steps and not model.is_dir():
            raise FaultError(f"{kind}: there is no model")
        _check_model(model)
    _finished(predict, may_fail=kind == "fit" and not model.exists())
    left = {path.name for path in folder.iterdir()} - {"t.csv", "m", "p.csv"}
    if left:
        raise FaultError(f"{kind}: left behind {sorted(left)}")
    _check_predictions(out)
    return f"{kind} killed" if was_killed else f"{kind} done before"


@cache
def _older_model() -> Path:
    folder = Path(tempfile.mkdtemp())
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    _write(folder / "t.csv")
    _finished(["fit", folder / "t.csv", *_FIT, "--seed", 1, "--out", folder / "m"])
    return folder / "m"


def _write(path: Path) -> None:
    x = np.arange(30.0)
    pd.DataFrame({"x": x, "z": np.cos(x), "y": np.sin(x)}).to_csv(path, index=False)


def _check_model(model: Path) -> None:
    load_table_model(model)  # which is whole, or an error
    found = {path.name for path in model.iterdir()}
    if found != _FILES or "</html>" not in (model / "report.html").read_text():
        raise FaultError(f"a model of {sorted(found)}")


def _check_predictions(out: Path) -> None:
    lines = out.read_text().splitlines()
    if lines != ["old"] and (len(lines) != 31 or lines[-1].count(",") != lines[0].count(",")):
        raise FaultError(f"predictions of {len(lines)} lines")


def _finished(command: list[Any], *, may_fail: bool = False) -> None:
    status = run_in_fork(lambda: _run(command))
    if status and not may_fail:
        raise FaultError(f"the command {command[0]} ended with status {status}")


def _run(command: list[Any], *, in_steps: bool = False) -> None:
    if in_steps:
        complete_writes.exchange = lambda one, other: False
    app([*map(str, command), "--quiet"], standalone_mode=False)


@cache
def _warm() -> None:
    """All that a command imports, once and not in every fork."""
    import bali.cli.results
    import bali.cli.terminal_progress
    import bali.tables.html_report
    import bali.tables.table_training
    import bali.tables.writing  # noqa: F401
