"""Jobs of the comparison: a table, a method and a fold, one line of scores each.

Every finished one is appended to a JSON-lines file, and a run that was interrupted goes on where it stopped.
"""

from __future__ import annotations

import multiprocessing
import time
import warnings
from collections.abc import Callable, Collection
from dataclasses import dataclass
from importlib import import_module
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.progress import track

from bali.predictive import metrics
from bali.predictive.mixtures import ClassPredictive, Predictive
from bali_benchmarks.lines import append_line, read_lines, write_lines
from bali_benchmarks.tables_study.densities import gaussians
from bali_benchmarks.tables_study.table_methods import METHODS
from bali_benchmarks.tables_study.table_sets import TABLES
from bali_benchmarks.tables_study.tables_bars import bars_of_other_studies
from bali_benchmarks.tables_study.tables_page import to_markdown

#: A method that takes longer for one fit has a line that says so.
SECONDS = 300.0


@dataclass(frozen=True)
class TableTask:
    name: str
    method: str
    fold: int

    @property
    def classification(self) -> bool:
        return TABLES[self.name].classification


def tasks(sets: Collection[str] = (), methods: Collection[str] = (), folds: int | None = None) -> list[TableTask]:
    """Those of these sets and methods, or of all; first folds first. What is timed has to be asked for by its name."""
    for kind, named, known in (("set", sets, TABLES), ("method", methods, METHODS)):
        unknown = [name for name in named if name not in known]
        if unknown:
            raise ValueError(f"there is no {kind} {unknown[0]!r}; there are {', '.join(known)}")
    tables = [table for name, table in TABLES.items() if name in sets or (not sets and table.kind != "timed")]
    own = [method for name, method in METHODS.items() if not methods or name in methods]
    return [
        TableTask(table.name, method.name, fold)
        for fold in range(max(table.n_folds for table in tables))
        if folds is None or fold < folds
        for table in tables
        if fold < table.n_folds
        for method in own
        if method.fit(table.classification) is not None
    ]


def run_task(task: TableTask) -> dict[str, Any]:
    """Seconds are those of the fit and of all predictions, without the loading of packages; `core_seconds` are of processor
    time, which other work on the machine changes little."""
    method, split = METHODS[task.method], TABLES[task.name].split(task.fold)
    line: dict[str, Any] = {"set": task.name, "method": task.method, "fold": task.fold}
    line |= {"rows": len(split.y_train), "columns": split.X_train.shape[1], "threads": torch.get_num_threads()}
    limit = method.most_rows
    if limit is not None and len(split.y_train) > limit:
        return line | {"failed": f"more than {limit:,} rows"}
    fit = method.fit(task.classification)
    assert fit is not None
    if method.package is not None:
        import_module(method.package)
    start, worked = time.perf_counter(), time.process_time()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of convergence, and what packages say about each other
        predict = fit(split.X_train, split.y_train, task.fold)
        fitted = time.perf_counter()
        predictive = predict(split.X_test)
    line |= {"fit_seconds": round(fitted - start, 2), "seconds": round(time.perf_counter() - start, 2)}
    line["core_seconds"] = round(time.process_time() - worked, 2)
    return line | scores(predictive, split.y_test)


def scores(predictive: Predictive, y: Any) -> dict[str, float]:
    """With the standard errors over test rows of those that methods are compared by."""
    target = torch.as_tensor(y)
    found = {"log_likelihood": metrics.log_likelihood(predictive, target)}
    if isinstance(predictive, ClassPredictive):
        accuracy = metrics.accuracy(predictive, target)
        found |= {"accuracy": accuracy, "accuracy_se": (accuracy * (1.0 - accuracy) / len(y)) ** 0.5}
        return found | {
            "brier": metrics.brier(predictive, target),
            "ece": metrics.expected_calibration_error(predictive, target),
        }
    mean, std = (part[:, 0].double().numpy() for part in (predictive.mean, predictive.std))
    rmse, squared = metrics.rmse(predictive, target), np.square(np.asarray(y) - mean)
    found |= {"crps": metrics.crps(predictive, target), "rmse": rmse}
    found["rmse_se"] = float(squared.std() / len(y) ** 0.5 / (2.0 * rmse)) if rmse else 0.0
    found["coverage_90"] = metrics.interval_coverage(predictive, target, 0.9)
    return found | {"log_likelihood_gaussian": metrics.log_likelihood(gaussians(mean, np.square(std)), target)}


def _answer(task: TableTask, connection: Connection) -> None:
    try:
        connection.send(run_task(task))
    except Exception as error:
        connection.send({"failed": f"{type(error).__name__}: {str(error)[:120]}"})


def run_limited(task: TableTask, seconds: float = SECONDS) -> dict[str, Any]:
    """In a process of its own, which is ended after so many seconds; what went wrong there is in the line."""
    context = multiprocessing.get_context("fork" if "fork" in multiprocessing.get_all_start_methods() else None)
    ours, theirs = context.Pipe(duplex=False)
    process = context.Process(target=_answer, args=(task, theirs))
    process.start()
    theirs.close()
    try:
        line = ours.recv() if ours.poll(seconds) else {"failed": f"more than {seconds:.0f} seconds"}
    except EOFError:
        line = {"failed": "the process ended"}
    finally:
        process.kill()
        process.join()
    return {"set": task.name, "method": task.method, "fold": task.fold} | line


def run(
    out: Path,
    page: Path | None = None,
    *,
    sets: Collection[str] = (),
    methods: Collection[str] = (),
    again: Collection[str] = (),
    folds: int | None = None,
    minutes: float | None = None,
    note: Callable[[str], None] = print,
) -> list[dict[str, Any]]:
    """Run what is not in the file yet, and begin nothing after so many minutes; then write the page.

    Lines of the methods in `again` are taken away first (of these sets), because something about them has changed; only
    they are run then, unless others are named too.
    """
    started = time.monotonic()
    rows, wanted = read_lines(out), tasks(sets, methods or again, folds)
    if again:
        rows = [row for row in rows if row["method"] not in again or (sets and row["set"] not in sets)]
        write_lines(out, rows)
    for name in dict.fromkeys(task.method for task in wanted):
        if not METHODS[name].is_installed:
            note(f"{name} is left out: pip install 'bali-benchmarks[peers]' has it.")
    done = {(row["set"], row["method"], row["fold"]) for row in rows}
    left = [t for t in wanted if (t.name, t.method, t.fold) not in done and METHODS[t.method].is_installed]
    for task in track(left, description="tables"):
        if minutes is not None and time.monotonic() - started > 60.0 * minutes:
            note("The time is over; the next run goes on.")
            break
        rows.append(append_line(out, run_limited(task)))
    if page is not None:
        page.write_text(page_of(out))
    return rows


def page_of(out: Path) -> str:
    """With the bars of other studies whose lines are beside these."""
    likelihoods, times = (read_lines(out.with_name(name)) for name in ("likelihoods.jsonl", "rows.jsonl"))
    return to_markdown(read_lines(out), bars_of_other_studies(likelihoods, times))
