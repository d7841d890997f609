"""The command `bali`: a thin layer of arguments over modules that do the work."""

from __future__ import annotations

import typer

from bali.cli.fit import fit
from bali.cli.predict import evaluate, predict
from bali.cli.query import query
from bali.cli.report import report, serve
from bali.cli.update import update

app = typer.Typer(no_args_is_help=True, add_completion=False, pretty_exceptions_show_locals=False)


@app.callback()
def main() -> None:
    """Bayesian neural networks by layerwise inference (BALI)."""


for command in (fit, predict, query, update, evaluate, report, serve):
    app.command()(command)
