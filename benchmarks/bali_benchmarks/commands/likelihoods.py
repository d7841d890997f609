"""`bali-benchmarks likelihoods`: counts, durations and noise by row."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from bali.cli.talk import failing_cleanly


def likelihoods(
    sets: Annotated[list[str] | None, typer.Option("--set", help="Only this set; may be given more than once.")] = None,
    again: Annotated[
        list[str] | None,
        typer.Option(help="Throw away what this method has (of these sets) and run it again, as its defaults have changed."),
    ] = None,
    out: Annotated[Path, typer.Option(help="JSON lines, one for each fit; what is there already is not run again.")] = Path(
        "results/likelihoods.jsonl"
    ),
    page: Annotated[Path, typer.Option(help="The page made from them.")] = Path("docs/likelihood_results.md"),
) -> None:
    """Counts, durations and noise by row: BALIRegressor beside linear models (an hour; BALI_DATA names the data)."""
    from bali_benchmarks.likelihoods.likelihood_runs import run
    from bali_benchmarks.likelihoods.likelihoods_page import to_markdown

    try:
        with failing_cleanly(out):
            page.write_text(to_markdown(run(out, sets or [], again or [])), encoding="utf-8")
            typer.echo(page.read_text(encoding="utf-8"))
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error
