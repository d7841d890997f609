"""`bali report`: the report of a model, made again from the record that the model file holds."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from bali.cli.options import Json, Model, Quiet
from bali.cli.talk import Talk, failing_cleanly
from bali.files import real
from bali.tables.complete_writes import complete_file
from bali.tables.errors import TableError


def report(
    model: Model,
    out: Annotated[
        Path | None, typer.Option(help="File to write. Default: report.html beside the model.", show_default=False)
    ] = None,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Write the report of a model: one page to open in a browser, without network."""
    from bali.cli.results import REPORT_FILE, report_page
    from bali.tables.table_model import load_table_model, model_path

    talk = Talk(as_json=as_json, quiet=quiet)
    with failing_cleanly():
        page = report_page(load_table_model(model))
        path = out if out is not None else model_path(model).with_name(REPORT_FILE)
        if real(path) == real(model_path(model)):
            raise TableError(f"--out {str(path)!r} would overwrite the model; name another file")
        with complete_file(path) as part:
            part.write_text(page, encoding="utf-8")
        talk.say(f"written to {path}; open it in a browser")
        talk.result({"report": str(path)})
