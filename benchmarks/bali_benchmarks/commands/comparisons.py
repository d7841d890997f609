"""`bali-benchmarks`: measurements that the documents are written from."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from bali.cli.talk import Talk, failing_cleanly
from bali_benchmarks.commands.performance import add_performance

Sets = Annotated[list[str] | None, typer.Option("--set", help="Only this set; may be given more than once.")]
Methods = Annotated[list[str] | None, typer.Option("--method", help="Only this method; may be given more than once.")]

bench = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_show_locals=False,
    help="The evidence for bali: measurements that the documents are written from, and the paper's experiments.",
)


@bench.command()
def tables(
    sets: Sets = None,
    names: Methods = None,
    again: Annotated[
        list[str] | None,
        typer.Option(help="Throw away what this method has (of these sets) and run it again, as its defaults have changed."),
    ] = None,
    folds: Annotated[int | None, typer.Option(min=1, help="Only so many splits of each table.")] = None,
    minutes: Annotated[float | None, typer.Option(help="Begin no further fit after so many.")] = None,
    out: Annotated[
        Path, typer.Option(help="JSON lines, one for each split; what is there already is not run again.")
    ] = Path("results/tables.jsonl"),
    page: Annotated[Path, typer.Option(help="The page made from them.")] = Path("docs/tables.md"),
) -> None:
    """Compare the defaults with linear models, Gaussian processes, boosted trees and other networks on many tables."""
    from bali_benchmarks.tables_study import table_runs as experiment

    sets, names, again = sets or [], names or [], again or []
    try:
        experiment.tasks(sets, [*names, *again])
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error
    with failing_cleanly(out):
        experiment.run(out, page, sets=sets, methods=names, again=again, folds=folds, minutes=minutes, note=Talk().note)
        typer.echo(page.read_text())


@bench.command()
def rows(
    out: Annotated[Path, typer.Option(help="JSON lines, one for each size; what is there already is not run again.")] = Path(
        "results/rows.jsonl"
    ),
    page: Annotated[Path, typer.Option(help="The page made from them.")] = Path("docs/rows.md"),
) -> None:
    """Time a fit with the defaults, from a thousand rows to a million."""
    from bali_benchmarks import rows_time as experiment

    with failing_cleanly(out):
        experiment.run(out, page)
        typer.echo(page.read_text())


@bench.command()
def seeds(
    sets: Sets = None,
    out: Annotated[Path, typer.Option(help="JSON lines, one for each fit; what is there already is not run again.")] = Path(
        "results/seeds.jsonl"
    ),
    page: Annotated[Path, typer.Option(help="The page made from them.")] = Path("docs/seeds.md"),
) -> None:
    """Fit the same rows with ten seeds: how much of a score is luck."""
    from bali_benchmarks import seeds_spread as experiment

    try:
        experiment.check(sets or ())
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error
    with failing_cleanly(out):
        experiment.run(out, page, sets or ())
        typer.echo(page.read_text())


@bench.command()
def methods(
    sets: Sets = None,
    names: Methods = None,
    out: Annotated[
        Path, typer.Option(help="JSON lines, one for each split; what is there already is not run again.")
    ] = Path("results/methods.jsonl"),
    page: Annotated[Path, typer.Option(help="The page made from them.")] = Path("docs/methods.md"),
    jobs: Annotated[int, typer.Option(min=1, help="Processes of one thread each.")] = 2,
    splits: Annotated[int | None, typer.Option(min=2, help="Only the first of the published splits.")] = None,
) -> None:
    """Compare every method with its authors' figures, on the splits that they used."""
    from bali_benchmarks import methods_comparison as experiment

    sets = sets or list(experiment.SETS)
    try:
        experiment.jobs(sets, names)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error
    with failing_cleanly(out):
        experiment.run(out, page, sets=sets, methods=names, n_jobs=jobs, n_splits=splits)
        typer.echo(page.read_text())


@bench.command()
def defaults(
    sets: Sets = None,
    names: Methods = None,
    splits: Annotated[int, typer.Option(min=1, help="Published splits of each set.")] = 2,
    out: Annotated[
        Path | None,
        typer.Option(
            help="JSON lines, one for each run; what is there is not run again.  [default: results/defaults.jsonl]"
        ),
    ] = None,
    page: Annotated[
        Path | None,
        typer.Option(help="The page made from them, its picture in images/ beside it.  [default: docs/defaults.md]"),
    ] = None,
    jobs: Annotated[int, typer.Option(min=1, help="Processes of one thread each.")] = 2,
    quick: Annotated[
        bool, typer.Option("--quick", help="Few steps on few rows, for a look; results and page go to results/quick.")
    ] = False,
    only_page: Annotated[bool, typer.Option("--only-page", help="Run nothing; write the page from what there is.")] = False,
) -> None:
    """Measure what it costs to change a hyperparameter: of BALI's defaults, the paper's settings, and other methods."""
    from bali_benchmarks.defaults_study import sensitivity_runs as experiment
    from bali_benchmarks.defaults_study.cases import SETS, cases
    from bali_benchmarks.defaults_study.sensitivity_fits import METHODS
    from bali_benchmarks.lines import read_lines

    out = out or Path("results/quick/defaults.jsonl" if quick else "results/defaults.jsonl")
    page = page or Path("results/quick/defaults.md" if quick else "docs/defaults.md")
    sets, names = sets or list(SETS), names or list(METHODS)
    try:
        cases(sets, names)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error
    with failing_cleanly(out):
        if only_page:
            experiment.write_page(read_lines(out), page)
        else:
            experiment.run(out, page, sets=sets, methods=names, n_splits=splits, quick=quick, n_jobs=jobs)
        typer.echo(page.read_text(encoding="utf-8"))


@bench.command()
def lenet(
    sets: Sets = None,
    names: Methods = None,
    steps: Annotated[int | None, typer.Option(min=1, help="Of each training.", show_default="2340")] = None,
    seeds: Annotated[int, typer.Option(min=1, help="Trainings of each method, from seed 0 on.")] = 1,
    quick: Annotated[
        bool, typer.Option("--quick", help="A minute's try on few rows and steps, in files of its own.")
    ] = False,
    out: Annotated[
        Path | None,
        typer.Option(
            help="JSON lines, one for each training; what is there already is not run again.",
            show_default="results/lenet.jsonl",
        ),
    ] = None,
    page: Annotated[Path | None, typer.Option(help="The page made from them.", show_default="docs/lenet.md")] = None,
    threads: Annotated[int | None, typer.Option(min=1, help="Threads of torch.", show_default="torch's own choice")] = None,
) -> None:
    """LeNet-5 on MNIST and Fashion-MNIST by BALI, Adam, MC dropout, Laplace and ensembles (three hours)."""
    from dataclasses import replace

    from bali_benchmarks.lenet_study import lenet_runs as experiment

    plan = experiment.QUICK if quick else experiment.LenetPlan()
    plan = plan if steps is None else replace(plan, steps=steps)
    out = out or Path("results/lenet-quick.jsonl" if quick else "results/lenet.jsonl")
    page = page or Path("results/lenet-quick.md" if quick else "docs/lenet.md")
    try:
        experiment.jobs(sets or [], names or [], seeds, plan)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error

    with failing_cleanly(out):
        experiment.run(out, page, sets=sets, methods=names, seeds=seeds, plan=plan, threads=threads, note=Talk().note)
        typer.echo(page.read_text())


add_performance(bench)
