"""`bali-benchmarks faults`: damage on purpose, and what came of it."""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from bali_benchmarks.faults import faults_page
from bali_benchmarks.faults.campaign import Subject, run
from bali_benchmarks.lines import read_lines


class SubjectName(StrEnum):
    files = "files"
    tables = "tables"
    small = "small"
    kills = "kills"
    full = "full"
    writers = "writers"
    calls = "calls"


def _files() -> Subject:
    from bali_benchmarks.faults.mutated_files import mutated_file

    return mutated_file


def _tables() -> Subject:
    from bali_benchmarks.faults.mutated_tables import mutated_table

    return mutated_table


def _small() -> Subject:
    from bali_benchmarks.faults.small_tables import small_table

    return small_table


def _kills() -> Subject:
    from bali_benchmarks.faults.killed_commands import killed_work

    return killed_work


def _full() -> Subject:
    from bali_benchmarks.faults.full_disk import full_disk

    return full_disk


def _writers() -> Subject:
    from bali_benchmarks.faults.two_writers import two_writers

    return two_writers


def _calls() -> Subject:
    from bali_benchmarks.faults.odd_calls import odd_call

    return odd_call


#: By name, where the subject is, and how often it is tried.
SUBJECTS: dict[SubjectName, tuple[Callable[[], Subject], int]] = {
    SubjectName.files: (_files, 10_000),
    SubjectName.tables: (_tables, 2000),
    SubjectName.small: (_small, 980),
    SubjectName.kills: (_kills, 320),
    SubjectName.full: (_full, 140),
    SubjectName.writers: (_writers, 100),
    SubjectName.calls: (_calls, 1000),
}


def faults(
    subjects: Annotated[list[SubjectName] | None, typer.Argument(help="What to try; by default everything.")] = None,
    tries: Annotated[int | None, typer.Option(min=1, help="Of each subject.", show_default="by subject")] = None,
    seconds: Annotated[float, typer.Option(min=0.0, help="No try is begun after so long, for each subject.")] = 900.0,
    seed: Annotated[int, typer.Option(min=0, help="Of the first try; the next has the next.")] = 0,
    out: Annotated[Path | None, typer.Option(help="JSON lines to add to, such as results/faults.jsonl.")] = None,
    page: Annotated[Path | None, typer.Option(help="The page to make from all of them, such as docs/faults.md.")] = None,
) -> None:
    """Damaged files and tables, tables of a few rows, killed commands, full disks, several writers, odd calls.

    Prints what was tried and what failed.
    """
    if page is not None and out is None:
        raise typer.BadParameter("a page is made from the lines in --out", param_hint="--page")
    n_failed = 0
    for name in subjects or list(SubjectName):
        load, usual = SUBJECTS[name]
        campaign = run(name, load(), usual if tries is None else tries, seconds, seed)
        typer.echo(str(campaign))
        n_failed += len(campaign.failures)
        if out is not None:
            faults_page.keep(out, campaign, seed)
    if out is not None and page is not None:
        page.write_text(faults_page.to_markdown(read_lines(out)), encoding="utf-8")
    if n_failed:
        raise typer.Exit(1)
