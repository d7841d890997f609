"""`bali evaluate`: how good a model is on a file that has the target."""

from __future__ import annotations

from bali.commands.options import Encoding, File, Json, Model, Quiet, Samples
from bali.commands.predict import extra_columns, missing_columns
from bali.commands.progress import row_counter
from bali.commands.talk import Talk, failing_cleanly
from bali.noted_warnings import noted_warnings
from bali.table_model import load_table_model
from bali.table_scores import MEANINGS, Scores
from bali.tables import Surprises, TableError, open_table
from bali.tables.errors import plural


def evaluate(
    model: Model,
    file: File,
    samples: Samples = None,
    encoding: Encoding = "utf-8",
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Score a model on a file that has the target."""
    talk = Talk(as_json=as_json, quiet=quiet)
    with failing_cleanly():
        trained = load_table_model(model)
        if samples is not None:
            trained.estimator.set_params(n_samples=samples)
        table, target = open_table(file, encoding), trained.target
        missing_columns(table, [*trained.columns, target.name])
        notes = extra_columns(table, trained, [])
        scores, surprises, n_without = Scores(target), Surprises(), 0
        as_text = [*trained.text_columns, *([target.name] if target.classes else [])]
        with noted_warnings() as warned, row_counter(talk) as on_rows:
            for frame in table.chunks([*trained.columns, target.name], as_text, trained.rows_at_once):
                known = frame[frame[target.name].notna()]
                n_without += len(frame) - len(known)
                if len(known):
                    scores.add(trained.predictive(known, surprises), target.values(known[target.name]))
                on_rows(len(frame))
        if scores.n_rows == 0:
            raise TableError(f"{str(file)!r} has no rows with a value of {target.name!r}: there is nothing to score")
        if n_without:
            notes.append(f"{plural(n_without, 'row')} without a value of {target.name!r} left out")
        notes += surprises.notes() + scores.notes() + warned
        talk.notes(notes)
        metrics = scores.metrics()
        talk.say(f"scores of {plural(scores.n_rows, 'row')} of {file.name}:")
        talk.scores(metrics, MEANINGS)
        talk.result({"n_rows": scores.n_rows, "metrics": metrics, "notes": notes})
