"""`bali-benchmarks reproduce`: the paper's experiments from one command."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from bali.cli.talk import failing_cleanly

#: What there is to ask for; "all" is everything.
ALL = "all"


def reproduce(
    experiments: Annotated[
        list[str],
        typer.Argument(metavar="EXPERIMENT...", help="all, or one or more of the paper's experiments by name."),
    ],
    quick: Annotated[
        bool, typer.Option("--quick", help="Few steps, rows and splits of everything: minutes, for a look.")
    ] = False,
    out: Annotated[
        Path | None,
        typer.Option(file_okay=False, help="Folder of the results; what is there is not run again.  [default: results]"),
    ] = None,
    page: Annotated[
        Path | None,
        typer.Option(dir_okay=False, help="The page made from them.  [default: docs/results.md]"),
    ] = None,
    method: Annotated[
        list[str] | None,
        typer.Option(help="Only this one: paper, paper-random, ours, map, mc_dropout or local. Repeat for several."),
    ] = None,
    set_: Annotated[
        list[str] | None, typer.Option("--set", help="Only this data set, such as yacht. Repeat for several.")
    ] = None,
    share: Annotated[
        float, typer.Option(min=0.001, max=1.0, help="Of the paper's steps in regression and classification.")
    ] = 1.0,
    jobs: Annotated[int, typer.Option(min=1, help="Processes of one thread each.")] = 1,
    unfinished: Annotated[
        Path | None,
        typer.Option(
            file_okay=False, help="Folder of what long runs leave to go on from.  [default: the results' folder unfinished]"
        ),
    ] = None,
) -> None:
    """Run the paper's experiments and write a page with our figures beside the paper's.

    With --quick, results and page go to results/quick.
    """
    from bali_benchmarks.reproduce import experiments as paper

    unknown = [name for name in experiments if name not in (ALL, *paper.EXPERIMENTS)]
    if unknown:
        raise typer.BadParameter(f"there is no experiment {unknown[0]!r}; there are {', '.join((ALL, *paper.EXPERIMENTS))}")
    names = list(paper.EXPERIMENTS) if ALL in experiments else list(dict.fromkeys(experiments))
    out = out or (Path("results/quick") if quick else Path("results"))
    page = page or (out / "results.md" if quick else Path("docs/results.md"))
    methods, sets = method or (), set_ or ()
    try:
        paper.jobs(names, methods, sets, quick=quick)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error
    with failing_cleanly(out):
        paper.run(names, out, page, quick=quick, methods=methods, sets=sets, share=share, n_jobs=jobs, unfinished=unfinished)
        typer.echo(page.read_text(encoding="utf-8"))
