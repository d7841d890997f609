"""Run what is not in the file yet, and write the page from all lines."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

import bali
from bali_benchmarks.learning import continual, learning_page
from bali_benchmarks.learning.continual import Size
from bali_benchmarks.learning.labels import TASKS, labels
from bali_benchmarks.learning.optimisation import FUNCTIONS, optimisation
from bali_benchmarks.lines import append_line, read_lines, write_lines
from bali_benchmarks.performance.measurement import Line
from bali_benchmarks.performance.performance_runs import rounded

STUDIES = ("condition", "permuted", "split", "labels", "optimisation")
QUICK = Size(rows=300, epochs=2)


@dataclass(frozen=True)
class LearningJob:
    study: str
    seed: int
    what: str = ""  # the data or the function
    method: str = ""

    @property
    def key(self) -> dict[str, Any]:
        return {"study": self.study, "what": self.what, "method": self.method, "seed": self.seed}

    def own(self, lines: Sequence[Line]) -> list[Line]:
        return [line for line in lines if self.key.items() <= line.items()]


def jobs(study: str, seeds: int, what: Sequence[str] = (), method: str | None = None) -> list[LearningJob]:
    if study not in STUDIES:
        raise ValueError(f"there is no study {study!r}; there are {', '.join(STUDIES)}")
    known = {"labels": tuple(TASKS), "optimisation": tuple(FUNCTIONS)}.get(study, ("",))
    unknown = [name for name in what if name not in known]
    if unknown:
        raise ValueError(f"{study} has no {unknown[0]!r}; it has {', '.join(known)}")
    methods = {"labels": ("query", "random"), "optimisation": ("network", "process")}.get(study, ("",))
    if method is not None and method not in methods:
        raise ValueError(f"{study} has no method {method!r}; it has {', '.join(filter(None, methods)) or 'none'}")
    chosen = methods if method is None else (method,)
    return [LearningJob(study, s, w, m) for s in range(seeds) for w in (what or known) for m in chosen]


def run(
    out: Path,
    page: Path,
    study: str,
    *,
    seeds: int,
    what: Sequence[str] = (),
    method: str | None = None,
    n_tasks: int = 20,
    size: Size = Size(),  # noqa: B008
    again: bool = False,
) -> list[Line]:
    """`again` throws away what these jobs have, and runs all of them."""
    lines, chosen = read_lines(out), jobs(study, seeds, what, method)
    if again:
        lines = [line for line in lines if not any(job.key.items() <= line.items() for job in chosen)]
        write_lines(out, lines)
    for job in chosen:
        done = job.own(lines)
        if any(line.get("is_last") for line in done):
            continue
        state = out.parent / "learning-state" / f"permuted-{job.seed}.bali"
        if done and not (study == "permuted" and state.is_file()):  # was interrupted, and is run again from its start
            lines, done = [line for line in lines if line not in done], []
            write_lines(out, lines)
        for line in _steps(job, done, state, n_tasks, size):
            lines.append(append_line(out, job.key | rounded(line)))
            write_page(lines, page)
    write_page(lines, page)
    return lines


def _steps(job: LearningJob, done: Sequence[Line], state: Path, n_tasks: int, size: Size) -> Iterator[Line]:
    """Lines as they are found; the last one says that it is."""
    if job.study == "permuted":
        state.parent.mkdir(parents=True, exist_ok=True)
        found = continual.permuted(job.seed, n_tasks, done, state, size)
    elif job.study == "split":
        found = continual.split(job.seed, size)
    elif job.study == "labels":
        found = labels(job.what, job.method, job.seed, size)
    elif job.study == "optimisation":
        found = optimisation(job.what, job.method, job.seed, size)
    else:
        found = iter([condition(job.seed)])
    before: Line | None = None
    for line in found:
        if before is not None:
            yield before
        before = line
        if job.study == "permuted":
            yield line | {"is_last": line["tasks"] == n_tasks}
            before = None
    if before is not None:
        yield before | {"is_last": True}


def condition(seed: int) -> Line:
    """Milliseconds that one more row takes, of a mixture 10-50-50-1, one thread: the median of 50.

    By the clock, and of the processor: the second is what it takes where nothing else runs.
    """
    x = torch.randn(300, 10, generator=torch.Generator().manual_seed(seed))
    y = x[:, :1].sin() + 0.1 * x[:, 1:2]
    sizes = nn.Sequential(nn.Linear(10, 50), nn.ReLU(), nn.Linear(50, 50), nn.ReLU(), nn.Linear(50, 1))
    fitted = bali.fit(sizes, (x, y), bali.likelihoods.Gaussian(), members=4, epochs=3, seed=seed, verbose=False)
    model = fitted.output_regression(x)
    seconds = []
    for row in range(50):
        began = time.perf_counter(), time.process_time()
        now = model.condition(x[row : row + 1], y[row : row + 1]).now
        _ = now.mean, now.noise
        seconds.append((time.perf_counter() - began[0], time.process_time() - began[1]))
    by_clock, of_processor = (1000 * torch.tensor(seconds, dtype=torch.float64).median(0).values).tolist()
    return {"milliseconds": by_clock, "processor_milliseconds": of_processor, "threads": torch.get_num_threads()}


def write_page(lines: Sequence[Line], page: Path) -> None:
    page.parent.mkdir(parents=True, exist_ok=True)
    page.write_text(learning_page.to_markdown(lines), encoding="utf-8")
