"""`bali report`: the report of a model, made again from the record that the model file holds."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from bali.commands.options import Json, Model, Quiet
from bali.commands.results import REPORT_FILE, report_page
from bali.commands.talk import Talk, failing_cleanly
from bali.table_model import load_table_model, model_path
from bali.tables import TableError
from bali.tables.writing import replaced_when_complete


def report(
    model: Model,
    out: Annotated[
        Path | None, typer.Option(help="File to write. Default: report.html beside the model.", show_default=False)
    ] = None,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Write the report of a model: one page to open in a browser, without network."""
    talk = Talk(as_json=as_json, quiet=quiet)
    with failing_cleanly():
        page = report_page(load_table_model(model))
        path = out if out is not None else model_path(model).with_name(REPORT_FILE)
        if path.resolve() == model_path(model).resolve():
            raise TableError(f"--out {str(path)!r} would overwrite the model; name another file")
        with replaced_when_complete(path) as temporary:
            temporary.write_text(page, encoding="utf-8")
        talk.say(f"written to {path}; open it in a browser")
        talk.result({"report": str(path)})
