"""`bali predict`: a prediction with its uncertainty for every row of a file, of any length; `bali evaluate`: its scores."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from bali.cli.talk import Encoding, File, Json, Model, OutRows, Quiet, Samples, Talk, failing_cleanly, talk_beside_rows
from bali.tables.complete_writes import STDOUT
from bali.tables.errors import TableError, plural, quoted, shown

if TYPE_CHECKING:
    import pandas as pd
    from numpy.typing import NDArray

    from bali.tables.cells import Surprises
    from bali.tables.opening import Table
    from bali.tables.table_model import TableModel


def predict(
    model: Model,
    file: File,
    out: OutRows = "predictions.csv",
    coverage: Annotated[
        float, typer.Option(min=0.01, max=0.999, help="Probability that an interval holds the value.")
    ] = 0.9,
    at: Annotated[
        list[float] | None,
        typer.Option(min=0.0, help="Durations: a time to tell the survival at; can be repeated.", show_default="quartiles"),
    ] = None,
    id_column: Annotated[
        str | None, typer.Option("--id", help="A column that names the rows; else they are counted.", show_default=False)
    ] = None,
    samples: Samples = None,
    no_formulas: Annotated[
        bool,
        typer.Option("--no-formulas", help="Put an apostrophe before text that a spreadsheet would take for a formula."),
    ] = False,
    encoding: Encoding = "utf-8",
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Predict the rows of a file.

    Writes, for each row, mean, std, lower, upper, epistemic_std and aleatoric_std; of counts also the median and the
    probability of 0; of durations median, mean, lower, upper and survival; or the class with all class probabilities,
    entropy, epistemic and aleatoric. The file is read piece by piece and may be larger than memory.
    """
    from bali.cli.talk import row_counter
    from bali.tables.cells import Surprises
    from bali.tables.opening import open_table
    from bali.tables.table_model import load_table_model, noted_warnings
    from bali.tables.writing import prediction_writer, without_formulas

    talk = talk_beside_rows(out, "predictions", as_json=as_json, quiet=quiet)
    with failing_cleanly():
        started = time.perf_counter()
        trained = load_table_model(model, samples)
        if at and trained.target.task != "durations":
            raise TableError(f"--at is for durations, and {shown(trained.target.name)} makes a {trained.target.task} model")
        table = open_table(file, encoding)
        check_output(out, file, model)
        missing_columns(table, [*trained.columns, *([id_column] if id_column else [])])
        talk.notes(extra_columns(table, trained, [id_column] if id_column else []))
        surprises, n_rows = Surprises(), 0
        with noted_warnings() as warned, prediction_writer(out) as write, row_counter(talk) as on_rows:
            for frame in predictions(table, trained, coverage, id_column, surprises, at):
                write(without_formulas(frame) if no_formulas else frame)
                on_rows(len(frame))
                n_rows += len(frame)
            if n_rows == 0:
                raise TableError(f"{table.source.name} has a header but no rows: there is nothing to predict")
        notes = surprises.notes() + warned
        talk.notes(notes)
        seconds = time.perf_counter() - started
        if out != STDOUT:
            talk.say(f"{plural(n_rows, 'prediction')} of {shown(trained.target.name)} written to {out} in {seconds:.1f} s")
        talk.result({"out": out, "n_rows": n_rows, "seconds": seconds, "notes": notes})


def predictions(
    table: Table,
    model: TableModel,
    coverage: float,
    id_column: str | None,
    surprises: Surprises,
    times: Sequence[float] | None = None,
) -> Iterator[pd.DataFrame]:
    """Row names and predictions, piece by piece."""
    import pandas as pd

    from bali.tables.writing import prediction_columns

    names = [id_column] if id_column else []
    wanted = dict.fromkeys([*names, *model.columns])
    for frame in table.chunks(wanted, [*model.text_columns, *names], model.rows_at_once):
        if frame.empty:
            continue
        columns = prediction_columns(model.predictive(frame, surprises), model.target, coverage, times)
        if id_column is None:
            rows: dict[str, Any] = {"row": frame.index.to_numpy()}
        else:
            rows = {f"id_{id_column}" if id_column in columns else id_column: frame[id_column].to_numpy()}
        yield pd.DataFrame(rows | columns)


def missing_columns(table: Table, wanted: list[str]) -> None:
    absent = [name for name in wanted if name not in table.columns]
    if absent:
        raise TableError(
            f"{table.source.name} lacks {quoted(absent)}, which the model needs; its columns are {quoted(table.columns, 12)}"
        )


def extra_columns(table: Table, model: TableModel, also_used: list[str]) -> list[str]:
    """A note about columns that the model does not use; the target's may well be there."""
    extra = [name for name in table.columns if name not in {*model.columns, *model.target.columns, *also_used}]
    return [f"columns that the model does not use are ignored: {quoted(extra)}"] if extra else []


def check_output(out: str, file: Path, model: Path) -> None:
    from bali.files import real
    from bali.tables.table_model import model_path

    if out != STDOUT and real(Path(out)) in (real(file), real(model_path(model))):
        raise TableError(f"--out {out!r} would overwrite what is read; name another file")


# --- rows with a value of the target, and their scores ----------------------------------------------------------------


class LabelledRows:
    """The rows of a file that have a value of the target; what is to be said of the others and of the columns."""

    def __init__(self, table: Table, model: TableModel) -> None:
        from bali.tables.cells import Surprises

        missing_columns(table, [*model.columns, *model.target.columns])
        self.table, self.model, self.surprises = table, model, Surprises()
        self.n_with = self.n_without = 0

    def pieces(self, on_rows: Callable[[int], None] = lambda n: None) -> Iterator[tuple[pd.DataFrame, NDArray[Any]]]:
        """Rows and their targets."""
        model, target = self.model, self.model.target
        as_text = [*model.text_columns, *([target.name] if target.classes else [])]
        for frame in self.table.chunks([*model.columns, *target.columns], as_text, model.rows_at_once):
            known = frame[frame[target.columns].notna().all(axis=1)]
            self.n_with, self.n_without = self.n_with + len(known), self.n_without + len(frame) - len(known)
            if len(known):
                yield known, target.values(known[target.name], None if target.event is None else known[target.event])
            on_rows(len(frame))

    def notes(self, purpose: str) -> list[str]:
        """After all pieces; an error if there were none."""
        name, columns = self.table.source.name, quoted(self.model.target.columns)
        if self.n_with == 0:
            raise TableError(f"{name} has no rows with a value of {columns}: there is nothing to {purpose}")
        left_out = [f"{plural(self.n_without, 'row')} without a value of {columns} left out"] if self.n_without else []
        return extra_columns(self.table, self.model, []) + left_out + self.surprises.notes()


def evaluate(
    model: Model,
    file: File,
    samples: Samples = None,
    encoding: Encoding = "utf-8",
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Score a model on a file that has the target."""
    from bali.cli.talk import row_counter
    from bali.tables.opening import open_table
    from bali.tables.table_model import load_table_model, noted_warnings
    from bali.tables.table_scores import METRICS, Scores

    talk = Talk(as_json=as_json, quiet=quiet)
    with failing_cleanly():
        trained = load_table_model(model, samples)
        table = open_table(file, encoding)
        rows, scores = LabelledRows(table, trained), Scores(trained.target)
        with noted_warnings() as warned, row_counter(talk) as on_rows:
            for frame, y in rows.pieces(on_rows):
                scores.add(trained.predictive(frame, rows.surprises), y)
        notes = rows.notes("score") + scores.notes() + warned
        talk.notes(notes)
        metrics = scores.metrics()
        talk.say(f"scores of {plural(scores.n_rows, 'row')} of {table.source.stem}:")
        talk.scores(metrics, METRICS)
        talk.result({"n_rows": scores.n_rows, "metrics": metrics, "notes": notes})
