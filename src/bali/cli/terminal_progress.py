"""Progress on standard error, where that is a terminal."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.progress import Progress, SpinnerColumn, TextColumn

from bali.cli.talk import Talk
from bali.training import progress
from bali.training.table_fit import Progress as Step


@contextmanager
def training_bar(talk: Talk) -> Iterator[Callable[[Step], None]]:
    """A function that is told of every step and draws it, or not."""
    if talk.quiet or not talk.stderr.is_terminal:
        yield lambda step: None
        return
    with progress.training_bar(talk.stderr) as on_step:
        yield on_step


@contextmanager
def row_counter(talk: Talk) -> Iterator[Callable[[int], None]]:
    """A function that is told of rows that are done, of an unknown total."""
    if talk.quiet or not talk.stderr.is_terminal:
        yield lambda rows: None
        return
    with Progress(SpinnerColumn(), TextColumn("{task.completed:,.0f} rows"), console=talk.stderr, transient=True) as bar:
        task = bar.add_task("rows", total=None)
        yield lambda rows: bar.advance(task, rows)
