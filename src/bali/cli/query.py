"""`bali query`: which rows of a file to label next."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from bali.cli.predict import check_output, missing_columns
from bali.cli.talk import Encoding, File, Json, Model, OutRows, Quiet, Samples, failing_cleanly, talk_beside_rows
from bali.tables.complete_writes import STDOUT
from bali.tables.errors import TableError, plural, shown

if TYPE_CHECKING:
    import pandas as pd

    from bali.predictive.mixtures import Predictive
    from bali.tables.opening import Table
    from bali.tables.table_model import TableModel

METHODS = ("epig", "bald", "batchbald", "variance")


def query(
    model: Model,
    file: File,
    n: Annotated[int, typer.Option("-n", min=1, help="How many rows to label.")] = 10,
    out: OutRows = "to-label.csv",
    method: Annotated[str, typer.Option(help="What labels should tell about: epig, bald, batchbald or variance.")] = "epig",
    target: Annotated[
        Path | None,
        typer.Option(help="A file of rows whose predictions matter, for epig. Default: those of FILE.", show_default=False),
    ] = None,
    samples: Samples = None,
    encoding: Encoding = "utf-8",
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Choose the rows of a file to label next.

    Writes the chosen rows as they are, the most telling first, with their numbers in FILE (row). The labels of the rows
    together tell most about the predictions at the target rows (epig), the weights of the model (batchbald; bald takes each
    row by itself), or, for numbers, the rows themselves (variance).
    """
    from bali.tables.opening import open_table
    from bali.tables.table_model import load_table_model
    from bali.tables.writing import prediction_writer
    from bali.training.active import query_predictive

    if method not in METHODS:
        raise typer.BadParameter(f"there are {', '.join(METHODS)}; got {method!r}", param_hint="--method")
    talk = talk_beside_rows(out, "rows", as_json=as_json, quiet=quiet)
    with failing_cleanly():
        started = time.perf_counter()
        trained = load_table_model(model, samples)
        if method == "variance" and trained.target.task == "classification":
            raise TableError("--method variance is for numbers; for classes take epig, batchbald or bald")
        table = open_table(file, encoding)
        check_output(out, file, model)
        frame, pool = _predicted(table, trained)
        if n > len(frame):
            raise TableError(f"{table.source.name} has {plural(len(frame), 'row')}, of which {n} cannot be chosen")
        of_target = None if target is None else _predicted(open_table(target, encoding), trained)[1]
        chosen = query_predictive(pool, n, method, target=of_target)  # type: ignore[arg-type]  # checked above
        rows = frame.iloc[chosen]
        with prediction_writer(out) as write:
            write(rows.reset_index(names="row" if "row" not in rows.columns else "row number"))
        seconds = time.perf_counter() - started
        numbers = [int(number) for number in rows.index]
        if out != STDOUT:
            name = shown(trained.target.name)
            talk.say(f"{plural(n, 'row')} of {len(frame)} to label with {name} next written to {out} in {seconds:.1f} s")
        talk.result({"out": out, "rows": numbers, "n_pool": len(frame), "method": method, "seconds": seconds})


def _predicted(table: Table, model: TableModel) -> tuple[pd.DataFrame, Predictive]:
    """All rows, as they are written, and their predictions: the same weight samples serve all of them."""
    import pandas as pd

    from bali.predictive.mixtures import concatenate

    missing_columns(table, model.columns)
    frames, predictions = [], []
    others = [name for name in table.columns if name not in model.columns]
    for frame in table.chunks(dict.fromkeys(table.columns), [*model.text_columns, *others], model.rows_at_once):
        if not frame.empty:
            frames.append(frame)
            predictions.append(model.predictive(frame))
    if not frames:
        raise TableError(f"{table.source.name} has a header but no rows: there is nothing to choose from")
    return pd.concat(frames), concatenate(predictions)
