"""A bar over jobs that take very different times."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import joblib
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

COLUMNS = (
    TextColumn("{task.description}"),
    BarColumn(),
    TextColumn("{task.percentage:.0f} %"),
    TextColumn("{task.fields[finished]} of {task.fields[jobs]} jobs,"),
    TimeElapsedColumn(),
    TextColumn("gone,"),
    TimeRemainingColumn(elapsed_when_finished=False),
    TextColumn("left"),
)


@contextmanager
def work_bar(description: str, costs: Sequence[float], console: Console) -> Iterator[Callable[[float], None]]:
    """For jobs of these costs. What it gives is told the cost of each that is finished: then the time left means something.

    Jobs that joblib runs in it are processes of one thread each.
    """
    with Progress(*COLUMNS, console=console) as bar, joblib.parallel_config(backend="loky", inner_max_num_threads=1):
        task = bar.add_task(description, total=sum(costs), finished=0, jobs=len(costs))
        finished = 0

        def advance(cost: float) -> None:
            nonlocal finished
            finished += 1
            bar.update(task, advance=cost, finished=finished)

        yield advance
