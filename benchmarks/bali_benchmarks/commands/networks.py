"""`bali-benchmarks networks`: `bali.fit` beside Adam, on networks of many kinds."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from bali.cli.talk import failing_cleanly

Tasks = Annotated[list[str] | None, typer.Option("--task", help="Only this task; may be given more than once.")]
Methods = Annotated[
    list[str] | None,
    typer.Option("--method", help="bali, adam or ensemble; may be given more than once.", show_default="bali, adam"),
]


def networks(
    tasks: Tasks = None,
    methods: Methods = None,
    seeds: Annotated[int, typer.Option(min=1, help="Trainings of each method, from seed 0 on.")] = 3,
    quick: Annotated[
        bool, typer.Option("--quick", help="Few rows and steps, for a look; results and page go to results/quick.")
    ] = False,
    out: Annotated[
        Path | None,
        typer.Option(
            help="JSON lines, one for each training; what is there already is not run again.",
            show_default="results/networks.jsonl",
        ),
    ] = None,
    page: Annotated[Path | None, typer.Option(help="The page made from them.", show_default="docs/networks.md")] = None,
    threads: Annotated[int | None, typer.Option(min=1, help="Threads of torch.", show_default="torch's own choice")] = None,
    scaled: Annotated[
        bool, typer.Option("--scaled", help="Trainings of bali with each of its rules scaled by 3 either way, instead.")
    ] = False,
    only_page: Annotated[bool, typer.Option("--only-page", help="Run nothing; write the page from what there is.")] = False,
) -> None:
    """Networks of many kinds by `bali.fit` with nothing set, and by Adam with its best rate (hours)."""
    from bali_benchmarks.networks import network_runs as experiment
    from bali_benchmarks.networks import scaled_rules
    from bali_benchmarks.networks.network_fits import QUICK, FitPlan
    from bali_benchmarks.performance.performance_runs import thread_count

    out = out or Path("results/quick/networks.jsonl" if quick else "results/networks.jsonl")
    page = page or Path("results/quick/networks.md" if quick else "docs/networks.md")
    try:
        experiment.jobs(tasks or [], methods or [], seeds)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error
    with failing_cleanly(out), thread_count(threads):
        plan = QUICK if quick else FitPlan()
        if not scaled and not only_page:
            experiment.run(out, page, tasks=tasks, methods=methods, seeds=seeds, plan=plan)
        else:
            if scaled:
                scaled_rules.run(experiment.scaled_lines(out), tasks=tasks, seeds=seeds, plan=plan)
            experiment.write_page(out, page)
        typer.echo(page.read_text(encoding="utf-8"))
