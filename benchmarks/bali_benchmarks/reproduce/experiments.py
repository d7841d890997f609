"""One loop for all experiments: what is not on disk yet is run, each finished job is appended, and the page is written.

Lines of an experiment are in `reproduce-NAME.jsonl`. A job that was stopped while its lines were written is run again. Long
jobs leave a file in the folder of unfinished runs every few minutes, and go on from there (`long_runs.py`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import joblib
from rich.console import Console

from bali_benchmarks.lines import append_line, read_lines, write_lines
from bali_benchmarks.reproduce import classification, pictures, readings, regression, step_costs, synthetic
from bali_benchmarks.reproduce.job import Job, Key, Line, key_of, stamped
from bali_benchmarks.reproduce.long_runs import Unfinished
from bali_benchmarks.reproduce.results_page import to_markdown
from bali_benchmarks.threads import threads_for
from bali_benchmarks.work_bar import work_bar

#: By experiment, its jobs, given whether only a look is wanted. Some experiments look at the same runs as others.
EXPERIMENTS: dict[str, Callable[[bool], list[Job]]] = {
    "synthetic": synthetic.jobs,
    "bbb-synthetic": synthetic.bbb_jobs,
    "local-reparam": lambda quick: synthetic.local_jobs(quick) + classification.local_jobs(quick),
    "regression": regression.jobs,
    "classification": classification.jobs,
    "convergence": classification.convergence_jobs,
    "ood": classification.ood_jobs,
    "readings": readings.jobs,
    "steps": step_costs.jobs,
}
#: By the experiment that a job names, which has the file of its lines, how it is run.
RUNNERS: dict[str, Callable[[Job], list[Line]]] = {
    "synthetic": synthetic.run,
    "bbb-synthetic": synthetic.bbb_run,
    "local-reparam": synthetic.local_run,
    "regression": regression.run,
    "classification": classification.run,
    "readings": readings.run,
    "steps": step_costs.run,
}


def jobs(
    names: Sequence[str], methods: Collection[str] = (), sets: Collection[str] = (), *, quick: bool = False
) -> list[Job]:
    """The jobs of some experiments, or of some methods and data sets in them; each once, though several may look at it."""
    every = {job.key: job for name in names for job in EXPERIMENTS[name](quick)}.values()
    for what, given, known in (
        ("method", methods, {job.method for job in every}),
        ("set", sets, {job.name for job in every}),
    ):
        unknown = [name for name in given if name not in known]
        if unknown:
            raise ValueError(f"there is no {what} {unknown[0]!r} in these experiments; there are {', '.join(sorted(known))}")
    return [job for job in every if job.method in (methods or [job.method]) and job.name in (sets or [job.name])]


def run(
    names: Sequence[str],
    out: Path,
    page: Path,
    *,
    quick: bool = False,
    methods: Collection[str] = (),
    sets: Collection[str] = (),
    share: float = 1.0,
    n_jobs: int = 1,
    unfinished: Path | None = None,
    console: Console | None = None,
) -> dict[str, list[Line]]:
    """Run what is missing of these experiments in `n_jobs` processes; then write the page of all that there is.

    `methods` and `sets` are those wanted, none for all. With a `share` of the paper's steps, runs with as many or more of
    them are not missing; shorter ones are kept beside longer ones, because other methods may have no longer ones.
    `unfinished` is the folder of what long jobs leave until they are finished, `out / "unfinished"` by default.
    """
    unfinished = unfinished or out / "unfinished"
    images = page.parent / "images"
    done: dict[Key, float] = {}
    for kind in RUNNERS:
        for line in _complete(_file(out, kind)):
            done[key_of(line)] = max(line["share"], done.get(key_of(line), 0.0))
    ready = [_ready(job, share, images, unfinished) for job in jobs(names, methods, sets, quick=quick)]
    left = [job for job in ready if done.get(job.key, 0.0) < job.share]
    for job, lines in _with_progress(left, n_jobs, console or Console(stderr=True)):
        for line in lines:
            append_line(_file(out, job.experiment), line)
        if job.unfinished is not None:
            Unfinished(job.unfinished, {}).remove()
    every = {kind: [line for line in read_lines(_file(out, kind)) if line["quick"] == quick] for kind in RUNNERS}
    pictures.draw(every, images)
    page.parent.mkdir(parents=True, exist_ok=True)
    page.write_text(to_markdown(every, quick=quick), encoding="utf-8")
    return every


def _ready(job: Job, share: float, images: Path, unfinished: Path) -> Job:
    """The estimators stop by themselves, and synthetic sets are quick: the others can be shortened, and are kept."""
    if job.experiment not in ("regression", "classification", "readings") or job.method == "ours" or job.quick:
        return replace(job, images=images)
    cost = max(1, round(share * job.cost))
    return replace(job, images=images, share=share, cost=cost, unfinished=unfinished / f"{job.title}-{share:g}.run")


def _file(out: Path, name: str) -> Path:
    return out / f"reproduce-{name}.jsonl"


def _complete(path: Path) -> list[Line]:
    """The lines of jobs that are complete; others are taken out of the file."""
    rows = read_lines(path)
    found = Counter((key_of(row), row["share"]) for row in rows)
    complete = [row for row in rows if found[key_of(row), row["share"]] == row["lines"]]
    if len(complete) < len(rows):
        write_lines(path, complete)
    return complete


def run_job(job: Job) -> tuple[Job, list[Line]]:
    """On one thread: several jobs share the machine."""
    with threads_for((1,)):
        return job, stamped(job, RUNNERS[job.experiment](job))


def _with_progress(left: Sequence[Job], n_jobs: int, console: Console) -> Iterator[tuple[Job, list[Line]]]:
    """Jobs as they finish, whichever is first."""
    with work_bar("reproduce", [job.cost for job in left], console) as advance:
        parallel = joblib.Parallel(n_jobs=n_jobs, return_as="generator_unordered")
        longest_first = sorted(left, key=lambda job: -job.cost)
        for job, lines in parallel(joblib.delayed(run_job)(job) for job in longest_first):
            yield job, lines
            advance(job.cost)
