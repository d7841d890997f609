"""Run every method on every task and seed, score it, and keep a line of each that is finished."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

from bali_benchmarks.lines import append_line, read_lines
from bali_benchmarks.networks import networks_page
from bali_benchmarks.networks.network_fits import FitPlan, TrainedNetwork, by_adam, by_bali, by_ensemble
from bali_benchmarks.networks.network_scores import scores
from bali_benchmarks.networks.network_tasks import TASKS, NetworkTask
from bali_benchmarks.networks.task_rows import Rows
from bali_benchmarks.performance.measurement import Line
from bali_benchmarks.performance.performance_runs import rounded
from bali_benchmarks.work_bar import work_bar

BALI, ADAM, ENSEMBLE = "bali", "adam", "ensemble"
METHODS = (BALI, ADAM, ENSEMBLE)
#: The ensemble has to be asked for.
USUAL = (BALI, ADAM)


@dataclass(frozen=True)
class NetworkJob:
    task: str
    method: str
    seed: int

    @property
    def key(self) -> dict[str, Any]:
        return {"task": self.task, "method": self.method, "seed": self.seed}


def jobs(tasks: Sequence[str], methods: Sequence[str], seeds: int) -> list[NetworkJob]:
    """All there is to do: one seed of every task first. The ensemble comes after Adam, whose rate it takes."""
    for given, known, what in ((tasks, tuple(TASKS), "task"), (methods, METHODS, "method")):
        unknown = [name for name in given if name not in known]
        if unknown:
            raise ValueError(f"there is no {what} {unknown[0]!r}; there are {', '.join(known)}")
    ordered = [method for method in METHODS if method in methods]
    return [NetworkJob(task, method, seed) for seed in range(seeds) for task in tasks for method in ordered]


def measure(task: NetworkTask, method: str, seed: int, plan: FitPlan, rate: float | None = None) -> Line:
    """One training and its scores; `rate` is that of an ensemble."""
    rows = task.rows(seed)
    rows = rows if plan.rows is None else rows.first(plan.rows)
    trained = _trained(task, method, rows, seed, plan, rate)
    return {
        **scores(trained.predict, rows),
        "validation_nll": trained.validation_nll,
        "seconds": trained.seconds.clock,
        "processor_seconds": trained.seconds.processor,
        "steps": trained.steps,
        **trained.details,
        "n_train": len(rows.train[0]),
        "threads": torch.get_num_threads(),
    }


def _trained(task: NetworkTask, method: str, rows: Rows, seed: int, plan: FitPlan, rate: float | None) -> TrainedNetwork:
    if method == BALI:
        return by_bali(task, rows, seed, plan)
    if method == ADAM:
        return by_adam(task, rows, seed, plan)
    assert rate is not None
    return by_ensemble(task, rows, seed, plan, rate)


def run(
    out: Path,
    page: Path,
    *,
    tasks: Sequence[str] | None = None,
    methods: Sequence[str] | None = None,
    seeds: int = 1,
    plan: FitPlan = FitPlan(),  # noqa: B008 (frozen)
    console: Console | None = None,
) -> list[Line]:
    """Run what is not in the file yet and write the page from all its lines."""
    lines = read_lines(out)
    every = jobs(tasks or list(TASKS), methods or list(USUAL), seeds)
    left = [job for job in every if not any(job.key.items() <= line.items() for line in lines)]
    costs = [TASKS[job.task].minutes for job in left]
    with work_bar("networks", costs, console or Console(stderr=True)) as advance:
        for job, cost in zip(left, costs, strict=True):
            line = measure(TASKS[job.task], job.method, job.seed, plan, _rate(job, lines))
            lines.append(append_line(out, job.key | rounded(line)))
            advance(cost)
    write_page(out, page)
    return lines


def _rate(job: NetworkJob, lines: Sequence[Line]) -> float | None:
    """That of Adam, for its ensemble."""
    if job.method != ENSEMBLE:
        return None
    wanted = NetworkJob(job.task, ADAM, job.seed).key
    found = [float(line["rate"]) for line in lines if wanted.items() <= line.items()]
    if not found:
        raise ValueError(f"an ensemble takes Adam's rate: run --task {job.task} --method {ADAM} first")
    return found[0]


def scaled_lines(out: Path) -> Path:
    """Beside the lines of trainings, those with a rule scaled."""
    return out.with_name(f"{out.stem}-scaled{out.suffix}")


def write_page(out: Path, page: Path) -> None:
    """From all lines that there are."""
    page.parent.mkdir(parents=True, exist_ok=True)
    page.write_text(networks_page.to_markdown(read_lines(out), read_lines(scaled_lines(out))), encoding="utf-8")
