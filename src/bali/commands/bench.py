"""`bali bench`: measurements that the documents are written from."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

bench = typer.Typer(no_args_is_help=True, help="Measurements that the documents are written from.")


@bench.command()
def tables(
    out: Annotated[Path, typer.Option(help="JSON lines, one for each fold; what is there already is not run again.")] = Path(
        "results/tables.jsonl"
    ),
    page: Annotated[Path, typer.Option(help="The page made from them.")] = Path("docs/tables.md"),
) -> None:
    """Compare the defaults with a perceptron and MC dropout on scikit-learn's bundled tables."""
    from bali.experiments import tables as experiment

    experiment.run(out, page)
    typer.echo(page.read_text())


@bench.command()
def rows(
    out: Annotated[Path, typer.Option(help="JSON lines, one for each size; what is there already is not run again.")] = Path(
        "results/rows.jsonl"
    ),
    page: Annotated[Path, typer.Option(help="The page made from them.")] = Path("docs/rows.md"),
) -> None:
    """Time a fit with the defaults, from a thousand rows to a million."""
    from bali.experiments import rows as experiment

    experiment.run(out, page)
    typer.echo(page.read_text())
