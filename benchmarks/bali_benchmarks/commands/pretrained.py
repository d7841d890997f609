"""`bali-benchmarks pretrained`: posteriors around trained networks, beside laplace-torch's."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from bali.cli.talk import failing_cleanly


def pretrained(
    tasks: Annotated[
        list[str] | None, typer.Option("--task", help="energy or mlp; may be given more than once.", show_default="both")
    ] = None,
    methods: Annotated[
        list[str] | None,
        typer.Option("--method", help="network, bali-last, bali-all, laplace-last or laplace-all.", show_default="all"),
    ] = None,
    seeds: Annotated[int, typer.Option(min=1, help="Networks of each task, from seed 0 on.")] = 1,
    quick: Annotated[
        bool, typer.Option("--quick", help="Few rows and steps, for a look; results and page go to results/quick.")
    ] = False,
    out: Annotated[
        Path | None, typer.Option(help="JSON lines, one for each method.", show_default="results/pretrained.jsonl")
    ] = None,
    page: Annotated[Path | None, typer.Option(help="The page made from them.", show_default="docs/pretrained.md")] = None,
    threads: Annotated[int | None, typer.Option(min=1, help="Threads of torch.", show_default="torch's own choice")] = None,
) -> None:
    """A posterior around a pretrained network by `bali.fit(epochs=0)` and by laplace-torch (minutes)."""
    from bali_benchmarks.networks import pretrained_runs as experiment
    from bali_benchmarks.networks.network_fits import QUICK, FitPlan
    from bali_benchmarks.performance.peer_trainings import MissingPeerError
    from bali_benchmarks.performance.performance_runs import thread_count

    for given, known in ((tasks, experiment.USUAL), (methods, experiment.METHODS)):
        unknown = [name for name in given or [] if name not in known]
        if unknown:
            raise typer.BadParameter(f"there is no {unknown[0]!r}; there are {', '.join(known)}")
    out = out or Path("results/quick/pretrained.jsonl" if quick else "results/pretrained.jsonl")
    page = page or Path("results/quick/pretrained.md" if quick else "docs/pretrained.md")
    plan = QUICK if quick else FitPlan()
    with failing_cleanly(out), thread_count(threads):
        try:
            experiment.run(
                out, page, tasks=tasks or experiment.USUAL, methods=methods or experiment.METHODS, seeds=seeds, plan=plan
            )
        except MissingPeerError as error:
            raise typer.BadParameter(f"{error}; or leave it out with --method") from error
        typer.echo(page.read_text(encoding="utf-8"))
