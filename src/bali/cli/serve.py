"""`bali serve`: a small local page where inputs are changed and the prediction moves."""

from __future__ import annotations

from typing import Annotated

import typer

from bali.cli.talk import Model, Quiet, Talk, failing_cleanly


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
                f"cannot listen at {host}, port {port}: {error.strerror or error}; name another with --port, or 0 for any"
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
