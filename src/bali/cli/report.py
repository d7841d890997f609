"""`bali report`: the report of a model, made again from the record in its file, or its what-if page; and `bali serve`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from bali.cli.talk import Json, Model, Quiet, Talk, failing_cleanly
from bali.files import real
from bali.tables.complete_writes import complete_file
from bali.tables.errors import TableError

if TYPE_CHECKING:
    from bali.tables.table_model import TableModel
    from bali.tables.what_if import Row


def report(
    model: Model,
    out: Annotated[
        Path | None,
        typer.Option(help="File to write. Default: report.html or what-if.html beside the model.", show_default=False),
    ] = None,
    what_if: Annotated[
        bool,
        typer.Option("--what-if", help="How the prediction of one row changes with each column, instead of the report."),
    ] = False,
    around: Annotated[
        Path | None,
        typer.Option(help="A table whose first row --what-if is about. Default: medians.", show_default=False),
    ] = None,
    open_page: Annotated[bool, typer.Option("--open", help="Open the page in a browser.")] = False,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Write the report of a model: one page to open in a browser, without network."""
    from bali.cli.results import REPORT_FILE, WHAT_IF_FILE, report_page
    from bali.tables.table_model import load_table_model, model_path

    talk = Talk(as_json=as_json, quiet=quiet)
    with failing_cleanly():
        if around is not None and not what_if:
            raise TableError("--around names a row for --what-if, which is not there")
        trained = load_table_model(model)
        path = out if out is not None else model_path(model).with_name(WHAT_IF_FILE if what_if else REPORT_FILE)
        if real(path) == real(model_path(model)):
            raise TableError(f"--out {str(path)!r} would overwrite the model; name another file")
        page = _what_if(trained, around) if what_if else report_page(trained)
        with complete_file(path) as part:
            part.write_text(page, encoding="utf-8")
        talk.say(f"written to {path}; open it in a browser")
        talk.result({"report": str(path)})
        if open_page:
            typer.launch(path.resolve().as_uri())


def _what_if(trained: TableModel, around: Path | None) -> str:
    from bali.tables.html_report.what_if_page import what_if_html
    from bali.tables.what_if import typical_row

    return what_if_html(trained, typical_row(trained) if around is None else _first_row(trained, around))


def _first_row(trained: TableModel, around: Path) -> Row:
    from bali.cli.predict import missing_columns
    from bali.tables.opening import open_table
    from bali.tables.what_if import row_of

    table = open_table(around, "utf-8")
    missing_columns(table, trained.columns)
    for frame in table.chunks(dict.fromkeys(trained.columns), trained.text_columns, 1):
        if len(frame):
            return row_of(trained, frame.iloc[:1])
    raise TableError(f"{table.source.name} has a header but no rows: there is none to look at")


# --- a small local page where inputs are changed and the prediction moves ---------------------------------------------


def serve(
    model: Model,
    host: Annotated[
        str, typer.Option(help="Address to listen at. Others than this machine's own let others in.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="0 takes any that is free.")] = 8000,
    open_page: Annotated[bool, typer.Option("--open/--no-open", help="Open the page in a browser.")] = False,
    quiet: Quiet = False,
) -> None:
    """Show a model on a local page: change its inputs and see the prediction and its uncertainty move.

    Ctrl-C ends it. Nothing is stored, and the page fetches nothing from elsewhere.
    """
    from bali.tables.errors import TableError
    from bali.tables.server import ModelServer
    from bali.tables.table_model import load_table_model

    talk = Talk(quiet=quiet)
    with failing_cleanly():
        trained = load_table_model(model)
        try:
            server = ModelServer(trained, host, port)
        except OSError as error:
            raise TableError(
                f"cannot listen at {host}, port {port}: {error.strerror or error}; "
                "name another with --host or --port, of which 0 takes any"
            ) from error
        with server:
            talk.say(f"{model}: open {server.address} in a browser; Ctrl-C ends it")
            if not server.only_here:
                talk.note(
                    f"{host} can be reached from other machines: everybody there can ask the model, and read the names "
                    "of its columns, their ranges and categories. There is no password and no encryption."
                )
            if open_page:
                typer.launch(server.address)
            try:
                server.serve_forever()
            except KeyboardInterrupt:
                talk.say("ended")
