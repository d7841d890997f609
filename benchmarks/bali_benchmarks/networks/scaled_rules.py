"""What it costs when a rule of `bali.fit` is off: each rule's result times 3 and a third of it, and nothing else changed.

Rules of the training are given to `bali.fit`. The width of the posterior, which held-out rows choose, is scaled after the
training; temperature or noise are then fitted anew.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

from bali.training.fit_calibration import calibrated_at
from bali.training.fitted import Fitted
from bali.training.rules import Rules
from bali_benchmarks.lines import append_line, read_lines
from bali_benchmarks.networks.network_fits import FitPlan, TrainedNetwork, fitted_network, trained_by_bali
from bali_benchmarks.networks.network_scores import scores
from bali_benchmarks.networks.network_tasks import TASKS, NetworkTask
from bali_benchmarks.networks.task_rows import Rows
from bali_benchmarks.performance.measurement import Line
from bali_benchmarks.performance.performance_runs import rounded
from bali_benchmarks.work_bar import work_bar

#: Fields of `Rules`, as the page names them.
OF_TRAINING = {
    "step_size": "step size α",
    "kl_bound": "bound κ on a step",
    "rate": "rate of A and S",
    "damping": "damping δ",
    "prior_variance": "prior variance σ²",
}
WIDTH = "width"
NAMES = OF_TRAINING | {WIDTH: "width of the posterior"}
FACTORS = (3.0, 1.0 / 3.0)
#: No rule scaled: what the others are compared with.
AS_IT_IS = ("none", 1.0)
#: The cheapest of all tasks, of every kind of likelihood and depth.
CHEAP = ("energy", "concrete", "telescope", "mlp")


@dataclass(frozen=True)
class ScaledJob:
    """One training, of which a few lines come: the width is scaled without another one."""

    task: str
    rule: str
    factor: float
    seed: int

    def key(self, rule: str | None = None, factor: float | None = None) -> dict[str, Any]:
        scaled = {"rule": rule or self.rule, "factor": round(factor or self.factor, 4)}
        return {"task": self.task, **scaled, "seed": self.seed}


def jobs(tasks: Sequence[str], seeds: int) -> list[ScaledJob]:
    """One seed of every task first."""
    scaled = [AS_IT_IS, *((rule, factor) for rule in OF_TRAINING for factor in FACTORS)]
    return [ScaledJob(task, rule, factor, seed) for seed in range(seeds) for task in tasks for rule, factor in scaled]


def scaled_rules(rule: str, factor: float) -> Rules:
    return Rules() if rule == AS_IT_IS[0] else replace(Rules(), **{rule: factor * getattr(Rules(), rule)})


def with_scaled_width(fitted: Fitted, rows: Rows, factor: float) -> None:
    """Temperature or noise are fitted again on the validation rows."""
    x, y = rows.validation
    if fitted.units is not None:
        y = ((y - fitted.units.shift) / fitted.units.scale).to(y)
    before = fitted.calibration
    _, fitted.calibration = calibrated_at(fitted, x, y, factor * before.width)


def measure(task: NetworkTask, job: ScaledJob, plan: FitPlan) -> list[Line]:
    """A line for each rule that this training tells about."""
    rows = task.rows(job.seed)
    rows = rows if plan.rows is None else rows.first(plan.rows)
    fitted, seconds = fitted_network(task, rows, job.seed, plan, scaled_rules(job.rule, job.factor))
    trained = trained_by_bali(fitted, seconds)
    found = [job.key() | _scored(trained, rows)]
    if job.rule == AS_IT_IS[0]:
        chosen = fitted.calibration
        for factor in FACTORS:
            fitted.calibration = chosen
            with_scaled_width(fitted, rows, factor)
            found.append(job.key(WIDTH, factor) | _scored(trained, rows))
    return found


def _scored(trained: TrainedNetwork, rows: Rows) -> Line:
    told = {"validation_nll": trained.validation_nll, "processor_seconds": trained.seconds.processor}
    return {**scores(trained.predict, rows), **told, "steps": trained.steps, "threads": torch.get_num_threads()}


def run(
    out: Path,
    *,
    tasks: Sequence[str] | None = None,
    seeds: int = 1,
    plan: FitPlan = FitPlan(),  # noqa: B008 (frozen)
    console: Console | None = None,
) -> list[Line]:
    """Run what is not in the file yet."""
    lines = read_lines(out)
    every = jobs(tasks or CHEAP, seeds)
    left = [job for job in every if not any(job.key().items() <= line.items() for line in lines)]
    costs = [TASKS[job.task].minutes for job in left]
    with work_bar("scaled rules", costs, console or Console(stderr=True)) as advance:
        for job, cost in zip(left, costs, strict=True):
            lines += [append_line(out, rounded(line)) for line in measure(TASKS[job.task], job, plan)]
            advance(cost)
    return lines
