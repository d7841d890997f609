"""How long `bali.fit` trains until validation rows are as likely as Adam makes them at best, on MNIST."""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence

import torch

from bali.inference.joint_pass import Link
from bali.inference.network import Network
from bali.predictive.likelihoods import Categorical
from bali.training import course as courses
from bali.training.course import Course, Job
from bali.training.examples import InMemory
from bali.training.rules import MAX_BLOCK, Rules, batch_size
from bali_benchmarks.networks.adam_search import AdamSettings, best_of_rates
from bali_benchmarks.networks.network_tasks import TASKS, NetworkTask
from bali_benchmarks.networks.task_rows import Rows
from bali_benchmarks.performance.measurement import Bar, Bench, Line, Measurement, paragraph, table

TASK, SEEDS = "mlp-all", 3


class _Arrived(Exception):
    """The score is as good as it was to be."""


def measure(seed: int, task: NetworkTask | None = None, most_scores: int | None = None) -> list[Line]:
    task = TASKS[TASK] if task is None else task
    rows, settings = task.rows(seed), AdamSettings(task.batch, task.is_regression, seed, most_scores)
    adam, _ = best_of_rates(lambda: task.network(seed), rows.train, rows.validation, settings)
    seconds, step, score = arrival(task, rows, seed, adam.score)
    return [
        {
            "adam_nll": adam.score,
            "adam_rate": adam.rate,
            "adam_seconds": adam.best_seconds,
            "adam_step": adam.best_step,
            "seconds": seconds,
            "step": step,
            "nll": score,
            "ratio": None if seconds is None else seconds / adam.best_seconds,
            "threads": torch.get_num_threads(),
        }
    ]


def arrival(task: NetworkTask, rows: Rows, seed: int, wanted: float) -> tuple[float | None, int, float]:
    """Seconds of the processor, None where it never was as good; the step; and the score."""
    torch.manual_seed(seed)
    network = Network(task.network(seed), has_optimizer=True, max_block=MAX_BLOCK)
    examples, held_out = InMemory(*rows.train), InMemory(*rows.validation)
    size, device = batch_size(len(examples)), rows.train[0].device
    job = Job(network, Categorical(), Link(), examples, held_out, size, None, seed, Rules(), device)

    def watch(job: Job, course: Course) -> None:
        if course.best_score <= wanted:
            raise _Arrived

    start = time.process_time()
    course = courses.start(job, prior_about_weights=False)
    try:
        courses.run(job, course, watch)
    except _Arrived:
        return time.process_time() - start, course.step, course.best_score
    return None, course.step, course.best_score


def jobs(*, seeds: int = SEEDS, task: NetworkTask | None = None, most_scores: int | None = None) -> list[Measurement]:
    def job(seed: int) -> Measurement:
        return Measurement({"seed": seed}, lambda: measure(seed, task, most_scores))

    return [job(seed) for seed in range(seeds)]


def bars(lines: Sequence[Line]) -> list[Bar]:
    ratios = [line["ratio"] for line in lines]
    known = None if None in ratios else [float(ratio) for ratio in ratios]
    return [
        Bar("seconds to Adam's best NLL, of Adam's: median", None if known is None else statistics.median(known), 0.6),
        Bar("seconds to Adam's best NLL, of Adam's: the longest", None if known is None else max(known), 1.0),
    ]


def section(lines: Sequence[Line]) -> list[str]:
    rows = [
        (
            str(line["seed"]),
            f"{line['adam_nll']:.4f}",
            f"{line['adam_step']:,}",
            f"{line['adam_seconds']:.1f}",
            f"{line['step']:,}",
            "never" if line["seconds"] is None else f"{line['seconds']:.1f}",
            "–" if line["ratio"] is None else f"{line['ratio']:.2f}",
        )
        for line in lines
    ]
    return [
        *paragraph(
            "784-256-256-10 on 54,000 rows of MNIST, 6,000 more for validation: `mlp-all` of [Networks](networks.md),",
            "with the same Adam. Its seconds are those until its best NLL of the validation rows, by the best of three",
            "rates, without the search for that rate. `bali.fit`, with batches of its own rule, trains until its NLL is as",
            "good. Processor time, scores included;",
            f"threads: {lines[0]['threads']}.",
        ),
        "",
        *table(("seed", "Adam's best NLL", "its step", "its seconds", "`bali.fit`: step", "seconds", "ratio"), rows),
    ]


BENCH = Bench("arrival", "Seconds to Adam's best", jobs, section, bars, threads=1)
