"""`bali-benchmarks learning`: tasks one after the other, labels to buy, functions to optimise."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from bali.cli.talk import failing_cleanly


def learning(
    study: Annotated[str, typer.Argument(help="condition, permuted, split, labels or optimisation.")],
    what: Annotated[
        list[str] | None, typer.Option("--what", help="Only this data set or function; may be given more than once.")
    ] = None,
    method: Annotated[str | None, typer.Option(help="Only query or random, network or process.")] = None,
    seeds: Annotated[int, typer.Option(min=1, help="Runs, from seed 0 on.")] = 1,
    tasks: Annotated[int, typer.Option(min=1, help="Of permuted MNIST.")] = 20,
    quick: Annotated[
        bool, typer.Option("--quick", help="Few rows and steps, for a look; results and page go to results/quick.")
    ] = False,
    out: Annotated[
        Path | None,
        typer.Option(help="JSON lines; what is there already is not run again.", show_default="results/learning.jsonl"),
    ] = None,
    page: Annotated[Path | None, typer.Option(help="The page made from them.", show_default="docs/learning.md")] = None,
    again: Annotated[
        bool, typer.Option("--again", help="Throw away what there is of these runs, and run them again.")
    ] = False,
    threads: Annotated[int | None, typer.Option(min=1, help="Threads of torch.", show_default="torch's own choice")] = None,
    only_page: Annotated[bool, typer.Option("--only-page", help="Run nothing; write the page from what there is.")] = False,
) -> None:
    """Continual learning, active learning and Bayesian optimisation (hours)."""
    from bali_benchmarks.learning import learning_runs as experiment
    from bali_benchmarks.learning.continual import Size
    from bali_benchmarks.lines import read_lines
    from bali_benchmarks.performance.performance_runs import thread_count

    out = out or Path("results/quick/learning.jsonl" if quick else "results/learning.jsonl")
    page = page or Path("results/quick/learning.md" if quick else "docs/learning.md")
    try:
        experiment.jobs(study, seeds, what or (), method)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error
    with failing_cleanly(out), thread_count(threads):
        if only_page:
            experiment.write_page(read_lines(out), page)
        else:
            size = experiment.QUICK if quick else Size()
            experiment.run(
                out, page, study, seeds=seeds, what=what or (), method=method, n_tasks=tasks, size=size, again=again
            )
        typer.echo(page.read_text(encoding="utf-8"))
