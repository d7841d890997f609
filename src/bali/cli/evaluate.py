"""`bali evaluate`: how good a model is on a file that has the target."""

from __future__ import annotations

from bali.cli.predict import extra_columns, missing_columns
from bali.cli.talk import Encoding, File, Json, Model, Quiet, Samples, Talk, failing_cleanly
from bali.tables.errors import TableError, plural, quoted


def evaluate(
    model: Model,
    file: File,
    samples: Samples = None,
    encoding: Encoding = "utf-8",
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Score a model on a file that has the target."""
    from bali.cli.terminal_progress import row_counter
    from bali.tables.cells import Surprises
    from bali.tables.opening import open_table
    from bali.tables.table_model import load_table_model, noted_warnings
    from bali.tables.table_scores import MEANINGS, Scores

    talk = Talk(as_json=as_json, quiet=quiet)
    with failing_cleanly():
        trained = load_table_model(model, samples)
        table, target = open_table(file, encoding), trained.target
        missing_columns(table, [*trained.columns, *target.columns])
        notes = extra_columns(table, trained, [])
        scores, surprises, n_without = Scores(target), Surprises(), 0
        as_text = [*trained.text_columns, *([target.name] if target.classes else [])]
        with noted_warnings() as warned, row_counter(talk) as on_rows:
            for frame in table.chunks([*trained.columns, *target.columns], as_text, trained.rows_at_once):
                known = frame[frame[target.columns].notna().all(axis=1)]
                n_without += len(frame) - len(known)
                if len(known):
                    events = None if target.event is None else known[target.event]
                    scores.add(trained.predictive(known, surprises), target.values(known[target.name], events))
                on_rows(len(frame))
        if scores.n_rows == 0:
            raise TableError(
                f"{table.source.name} has no rows with a value of {quoted(target.columns)}: there is nothing to score"
            )
        if n_without:
            notes.append(f"{plural(n_without, 'row')} without a value of {quoted(target.columns)} left out")
        notes += surprises.notes() + scores.notes() + warned
        talk.notes(notes)
        metrics = scores.metrics()
        talk.say(f"scores of {plural(scores.n_rows, 'row')} of {table.source.stem}:")
        talk.scores(metrics, MEANINGS)
        talk.result({"n_rows": scores.n_rows, "metrics": metrics, "notes": notes})
