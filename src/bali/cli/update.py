"""`bali update`: more rows for a model, without training."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated

import typer

from bali.cli.predict import LabelledRows
from bali.cli.talk import Encoding, File, Json, Model, Quiet, Talk, failing_cleanly
from bali.tables.errors import plural


def update(
    model: Model,
    file: File,
    out: Annotated[
        Path | None,
        typer.Option(dir_okay=False, help="The model file to write. Default: the model is replaced.", show_default=False),
    ] = None,
    forget: Annotated[float, typer.Option(min=0.0, max=0.99, help="The share of all earlier rows that fades.")] = 0.0,
    encoding: Encoding = "utf-8",
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Add the rows of a file to a model, without training.

    For numbers with Gaussian noise. Output layers and noise are then exactly what all rows together give, in whatever files
    they come; the other layers stay as they are. Says so when the new rows are further from their predictions than rows that
    were kept aside in training. Fit again when there are many more rows than there were.
    """
    from bali.tables.opening import open_table
    from bali.tables.table_model import load_table_model, model_path, noted_warnings
    from bali.tables.table_training import check_takes_rows, take_in

    talk = Talk(as_json=as_json, quiet=quiet)
    with failing_cleanly():
        started = time.perf_counter()
        path = model_path(model)
        trained = load_table_model(path)
        check_takes_rows(trained)
        table = open_table(file, encoding)
        rows = LabelledRows(table, trained)
        with noted_warnings() as warned:
            n_rows, of_drift = take_in(trained, rows.pieces(), forget, rows.surprises)
        notes = rows.notes("learn from") + of_drift + warned
        faded = f", {forget:.0%} of the earlier ones faded" if forget else ""
        trained.record["notes"].append(
            f"later: {plural(n_rows, 'row')} of {table.source.stem} added without training{faded}"
        )
        trained.save(path if out is None else out)
        talk.notes(notes)
        seconds = time.perf_counter() - started
        talk.say(f"{plural(n_rows, 'row')} added to {path if out is None else out} in {seconds:.1f} s")
        talk.result({"out": str(path if out is None else out), "n_rows": n_rows, "seconds": seconds, "notes": notes})
