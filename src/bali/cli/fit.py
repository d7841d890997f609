"""`bali fit`: learn from a table, score a held-out part, write model, report and metrics."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from bali.cli.talk import Encoding, File, Json, Quiet, Talk, failing_cleanly
from bali.tables.errors import TableError, plural, quoted

if TYPE_CHECKING:
    from bali.tables.table_model import TableModel
    from bali.tables.table_training import TrainingTable


class TaskChoice(StrEnum):
    auto = "auto"
    regression = "regression"
    counts = "counts"
    classification = "classification"


def fit(
    file: File,
    target: Annotated[str | None, typer.Option(help="The column to predict.", show_default=False)] = None,
    time: Annotated[
        str | None,
        typer.Option(
            help="Instead of a target: how long something lasted, some of which was not over yet.", show_default=False
        ),
    ] = None,
    event: Annotated[
        str | None, typer.Option(help="With --time: 1 where it was over then, 0 where not yet.", show_default=False)
    ] = None,
    task: Annotated[
        TaskChoice, typer.Option(help="What kind of prediction; by default it depends on the target.")
    ] = TaskChoice.auto,
    out: Annotated[
        Path | None, typer.Option(help="Folder to write to. Default: the file's name with -model.", show_default=False)
    ] = None,
    drop: Annotated[
        list[str] | None, typer.Option(help="A column to leave out; can be repeated.", show_default=False)
    ] = None,
    category: Annotated[
        list[str] | None, typer.Option(help="A column of numbers that are categories; can be repeated.", show_default=False)
    ] = None,
    id_column: Annotated[str | None, typer.Option("--id", help="A column that names the rows.", show_default=False)] = None,
    members: Annotated[int | None, typer.Option(min=1, help="Posteriors to mix.", show_default="by size")] = None,
    max_iter: Annotated[int | None, typer.Option(min=1, help="Most training steps.", show_default="by size")] = None,
    time_limit: Annotated[
        float | None, typer.Option(min=0.001, help="Most seconds to train; the best so far is kept.", show_default=False)
    ] = None,
    jobs: Annotated[int | None, typer.Option(min=1, help="Threads to train with.", show_default="all cores")] = None,
    seed: Annotated[int, typer.Option(min=0, max=2**32 - 1, help="Same seed, same result.")] = 0,
    holdout: Annotated[float, typer.Option(min=0.0, max=0.9, help="Share of the rows kept aside to score the model.")] = 0.1,
    encoding: Encoding = "utf-8",
    force: Annotated[bool, typer.Option("--force", help="Replace a model that is already in the folder.")] = False,
    open_report: Annotated[bool, typer.Option("--open", help="Open the report in a browser at the end.")] = False,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Learn to predict a column of a table.

    Writes a folder with the model, a report to open in a browser, and the scores of rows that were kept aside.
    """
    from bali.cli import results
    from bali.cli.talk import training_bar
    from bali.tables.opening import open_table
    from bali.tables.table_training import FitOptions, fit_table, read_training_table

    talk = Talk(as_json=as_json, quiet=quiet)
    name = _target(target, time, event, task)
    chosen = {"n_members": members, "max_iter": max_iter, "n_jobs": jobs}
    options = FitOptions(
        target=name,
        task=task.value,
        event=event,
        time_limit=time_limit,
        drop=tuple(drop or ()),
        category=tuple(category or ()),
        id=id_column,
        holdout=holdout,
        seed=seed,
        estimator={name: value for name, value in chosen.items() if value is not None},
    )
    with failing_cleanly():
        folder = out if out is not None else _default_folder(file)
        results.check_destination(folder, force=force)
        data = read_training_table(open_table(file, encoding), options)
        _introduce(talk, data)
        with training_bar(talk) as on_step:
            model = fit_table(data, options, on_step)
        results.write_results(folder, model, force=force)
        _conclude(talk, model, folder, len(data.notes))
        if open_report:
            typer.launch((folder / results.REPORT_FILE).resolve().as_uri())


def _target(target: str | None, time: str | None, event: str | None, task: TaskChoice) -> str:
    """The column that is predicted; of durations, the one with the times."""
    if time is None:
        if event is not None:
            raise typer.BadParameter("goes with --time, the column that says how long it lasted", param_hint="--event")
        if target is None:
            raise typer.BadParameter(
                "name the column to predict (or --time and --event, for durations)", param_hint="--target"
            )
        return target
    if target is not None or task is not TaskChoice.auto:
        raise typer.BadParameter(
            "--time and --event name what is predicted; leave out --target and --task", param_hint="--time"
        )
    if event is None:
        raise typer.BadParameter(
            "name the column that is 1 where it was over by then and 0 where it was not over yet; if all of them were over, "
            "use --target instead of --time",
            param_hint="--event",
        )
    return time


def _default_folder(file: Path) -> Path:
    if str(file) == "-":
        raise TableError("standard input has no name to call the model after; name a folder with --out")
    return Path(f"{file.name.split('.')[0]}-model")


def _introduce(talk: Talk, data: TrainingTable) -> None:
    kinds = list(data.kinds.values())
    parts = {"number": "of numbers", "category": "of categories", "date": "of dates"}
    inputs = ", ".join(f"{kinds.count(kind)} {text}" for kind, text in parts.items() if kind in kinds)
    talk.say(f"{data.source}: {plural(len(data.y), 'row')}, {plural(len(kinds), 'column')} to learn from ({inputs})")
    classes = f", {len(data.target.classes)} classes: {quoted(data.target.classes)}" if data.target.classes else ""
    talk.say(f"task: {data.target.task}{classes} ({data.reason})")
    talk.notes(data.notes)


def _conclude(talk: Talk, model: TableModel, folder: Path, n_notes_said: int) -> None:
    from bali.cli.results import METRICS_FILE, REPORT_FILE, short_record
    from bali.tables.table_model import MODEL_FILE
    from bali.tables.table_scores import METRICS

    record = model.record
    talk.notes(record["notes"][n_notes_said:])
    steps = plural(model.estimator.n_iter_, "step")
    talk.say(f"trained on {plural(record['n_train'], 'row')} in {record['seconds']:.1f} s, {steps}")
    for what, chosen in (model.encoder.summary | model.estimator.health().chosen).items():
        talk.say(f"  {what}: {chosen}")
    if record["metrics"]:
        talk.say(f"\nscores of {plural(record['n_holdout'], 'row')} that were kept aside:")
        talk.scores(record["metrics"], METRICS)
    talk.say(f"\nwritten to {folder}: {MODEL_FILE}, {REPORT_FILE}, {METRICS_FILE}")
    talk.say(f"next: open {folder / REPORT_FILE} in a browser")
    talk.say(f"      bali predict {folder} NEW.csv --out predictions.csv")
    paths: dict[str, Any] = {
        "model": str(folder / MODEL_FILE),
        "report": str(folder / REPORT_FILE),
        "steps": model.estimator.n_iter_,
    }
    talk.result(paths | short_record(model))
