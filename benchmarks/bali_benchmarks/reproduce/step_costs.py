"""What a step of the classification benchmark costs, and so a run in full: to be measured before one is begun."""

from __future__ import annotations

import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace

from bali_benchmarks import datasets
from bali_benchmarks.reproduce.classification import every_job, pool_of, setting_of
from bali_benchmarks.reproduce.courses import Course, classifier_course
from bali_benchmarks.reproduce.job import Job, Line
from bali_benchmarks.reproduce.markdown import EMPTY, table, wrapped
from bali_benchmarks.reproduce.paper_settings import ADAM, CLASSIFICATION

#: Steps before those that are timed, and rounds of steps that are.
WARM_UP, ROUNDS, QUICK_ROUNDS, STEPS = 2, 5, 1, 2


def jobs(quick: bool) -> list[Job]:
    return [
        Job("steps", job.name, job.method, None, quick, 1 if quick else 20)
        for job in every_job(quick)
        if job.method != "ours"
    ]


def run(job: Job) -> list[Line]:
    """Seconds of the processor for a step of all members. Where they share mini-batches, also with batches of their own,
    in turns, so that both meet the same machine."""
    begun = time.process_time()
    setting = setting_of(job.name, job.quick)
    pool = pool_of(datasets.load(job.name), setting)
    pools = {"step": pool} | ({"step_own_batches": replace(pool, shares_rows=False)} if pool.shares_rows else {})
    courses = {name: classifier_course(job.method, p, setting, ADAM[job.name]) for name, p in pools.items()}
    for course in courses.values():
        _seconds(course, WARM_UP)
    found: dict[str, list[float]] = {name: [] for name in courses}
    for _ in range(QUICK_ROUNDS if job.quick else ROUNDS):
        for name, course in courses.items():
            found[name].append(_seconds(course, STEPS) / STEPS)
    medians = {name: statistics.median(values) for name, values in found.items()}
    hours = {"hours": medians["step"] * setting.n_steps / 3600}
    return [medians | hours | {"members": pool.members, "seconds": round(time.process_time() - begun, 1)}]


def _seconds(course: Course, n_steps: int) -> float:
    start = time.process_time()
    for _ in range(n_steps):
        course.advance()
    return time.process_time() - start


def section(every: Mapping[str, Sequence[Line]]) -> list[str]:
    rows = every["steps"]
    text = (
        "Milliseconds of the processor for a step of all splits or seeds together, one thread, and hours for a run with all "
        "of the paper's steps; of images also with mini-batches of each seed's own, by how many times that takes longer. "
        f"Medians of {ROUNDS} rounds, in turns, on a machine with other work."
    )
    body = []
    for name in CLASSIFICATION:
        for row in (row for row in rows if row["set"] == name):
            own = f"{row['step_own_batches'] / row['step']:.2f}" if "step_own_batches" in row else EMPTY
            body.append([name, f"`{row['method']}`", f"{1e3 * row['step']:.0f}", f"{row['hours']:.1f}", own])
    total = sum(row["hours"] for row in rows)
    header = ["set", "method", "step, ms", "in full, h", "own batches, times"]
    ends = wrapped(f"All of these together: {total:.0f} hours of one core.")
    return ["## What a run in full costs", "", wrapped(text), "", *table(header, body), "", ends]
