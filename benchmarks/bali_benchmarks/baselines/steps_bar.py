"""The bar of a method that takes steps."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeRemainingColumn


@contextmanager
def steps_bar(console: Console) -> Iterator[Callable[[int, int, float | None], None]]:
    """A function that is told steps done, steps at most and the best validation score, and draws them."""
    columns = (
        SpinnerColumn(),
        BarColumn(bar_width=12),
        MofNCompleteColumn(),
        TextColumn("at most"),
        TimeRemainingColumn(compact=True),
        TextColumn("validation {task.fields[validation]}"),
    )
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task("training", total=None, validation="–")

        def on_progress(done: int, total: int, score: float | None) -> None:
            bar.update(task, total=total, completed=done, validation="–" if score is None else f"{score:.3f}")

        yield on_progress
