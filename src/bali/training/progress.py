"""Bars of trainings that may end before their last step."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    SpinnerColumn,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from bali.training.course import Course, Job, patience
from bali.training.table_fit import Progress as Step


@contextmanager
def training_bar(console: Console) -> Iterator[Callable[[Step], None]]:
    """A function that is told of every step and draws it."""
    columns = (
        SpinnerColumn(),
        BarColumn(bar_width=12),
        MofNCompleteColumn(),
        TextColumn("at most"),
        TimeRemainingColumn(compact=True),
        TextColumn("log-lik. {task.fields[likelihood]}, validation {task.fields[validation]}"),
    )
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task("training", total=None, likelihood="–", validation="–")

        def on_step(step: Step) -> None:
            validation = "–" if step.validation_score is None else f"{step.validation_score:.3f}"
            likelihood = f"{step.log_likelihood:.3f}"
            bar.update(task, total=step.max_steps, completed=step.step, likelihood=likelihood, validation=validation)

        yield on_step


@contextmanager
def fit_bar(members: int) -> Iterator[Callable[[Job, Course], None]]:
    """A function that is told of every score and draws it on standard error, where that is a terminal."""
    console = Console(stderr=True)
    if not console.is_terminal:
        yield lambda job, course: None
        return
    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(bar_width=12),
        TextColumn("step {task.fields[step]:,}, held-out {task.fields[score]:.4f} (best {task.fields[best]:.4f})"),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=console, transient=True) as bar:
        nan = float("nan")
        task = bar.add_task("training", total=1.0, step=0, score=nan, best=nan)
        seen: list[Job] = []

        def on_score(job: Job, course: Course) -> None:
            if not any(job is known for known in seen):
                seen.append(job)
            share = (course.phase + course.waited / patience(job, course)) / job.rules.phases
            if job.max_steps is not None:
                share = max(share, course.step / job.max_steps)
            of = f" {len(seen)} of {members}" if members > 1 else ""
            bar.update(
                task,
                description=f"network{of}, phase {course.phase + 1} of at most {job.rules.phases}",
                completed=(len(seen) - 1 + min(share, 1.0)) / members,
                step=course.step,
                score=course.scores[-1][1],
                best=course.best_score,
            )

        yield on_score
