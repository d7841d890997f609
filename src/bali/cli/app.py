"""The command `bali`: a thin layer of arguments over modules that do the work."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

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


@app.command()
def demo(
    out: Annotated[Path, typer.Option(file_okay=False, help="Folder for pictures and results.json.")] = Path("demo"),
    quick: Annotated[bool, typer.Option("--quick", help="Small networks and few steps, for a look.")] = False,
) -> None:
    """Fit the paper's three synthetic sets, print their scores and draw what the networks know."""
    from bali.cli import demo as demonstration

    demonstration.run(out, quick=quick)
