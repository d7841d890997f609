"""A bar for a training that may end before its last step."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeRemainingColumn

from bali.commands.talk import Talk
from bali.training import Progress as Step


@contextmanager
def training_bar(talk: Talk) -> Iterator[Callable[[Step], None]]:
    """A function that is told of every step and draws it on standard error, if that is a terminal."""
    if talk.quiet or not talk.stderr.is_terminal:
        yield lambda step: None
        return
    columns = (
        SpinnerColumn(),
        BarColumn(bar_width=12),
        MofNCompleteColumn(),
        TextColumn("at most"),
        TimeRemainingColumn(compact=True),
        TextColumn("log-lik. {task.fields[likelihood]}, validation {task.fields[validation]}"),
    )
    with Progress(*columns, console=talk.stderr, transient=True) as bar:
        task = bar.add_task("training", total=None, likelihood="–", validation="–")

        def on_step(step: Step) -> None:
            validation = "–" if step.validation_score is None else f"{step.validation_score:.3f}"
            likelihood = f"{step.log_likelihood:.3f}"
            bar.update(task, total=step.max_steps, completed=step.step, likelihood=likelihood, validation=validation)

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
