"""Twenty small networks trained as one batch of matrices, and one alone: as tables train them, and in the paper's form."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

import bali
from bali.predictive.likelihoods import Gaussian
from bali.training.stack_course import CourseRules, StackCourse, StackData, initial_means
from bali_benchmarks import datasets
from bali_benchmarks.performance.measurement import Bar, Bench, Line, Measurement, median_line, paragraph, table
from bali_benchmarks.performance.timing import interleaved
from bali_benchmarks.stacked_mlp import stacked_mlp

SIZES = (6, 50, 1)
N_ROWS, MEMBERS = 276, 20
#: Milliseconds for a step of each of the members, and of a network alone.
MEMBER_LIMIT, SINGLE_LIMIT = 0.14, 1.0
#: Steps of a course whose scores come every so often, as those of a table with so many rows do.
_STEPS = 650


def yacht_rows(n: int) -> tuple[Tensor, Tensor, str]:
    """Standardised rows of the yacht data; random ones of that shape where it cannot be had."""
    try:
        split = datasets.load("yacht").split(0)
    except datasets.DataError:
        generator = torch.Generator().manual_seed(0)
        x = torch.randn(n, SIZES[0], generator=generator)
        return x, x.sin().sum(-1) + 0.1 * torch.randn(n, generator=generator), "random rows"
    x, y = (torch.as_tensor(values[:n]) for values in (split.X_train, split.y_train))
    x, y = ((values - values.mean(0)) / values.std(0) for values in (x, y))
    return x.float(), y.float(), "yacht"


def network(members: int | None, generator: torch.Generator) -> nn.Sequential:
    module = (
        nn.Sequential(nn.Linear(SIZES[0], SIZES[1]), nn.ReLU(), nn.Linear(SIZES[1], SIZES[2]))
        if members is None
        else stacked_mlp(members, SIZES, "relu")
    )
    with torch.no_grad():
        for name, variance in {"0": 1.0, "2": 1.0 / (SIZES[1] + 1)}.items():
            for parameter in module.get_submodule(name).parameters():
                parameter.normal_(0.0, variance**0.5, generator=generator)
    return module


def as_tables_do(members: int, x: Tensor, y: Tensor) -> Callable[[], object]:
    """Steps of `BALIRegressor`, of full batches and with its scores: every two members hold out a tenth of the rows."""
    generator = torch.Generator().manual_seed(0)
    group = torch.arange(members) // 2
    held_out = torch.arange(len(x)) % 10 == group[:, None] % 10
    means = initial_means(members, SIZES, generator, x.dtype)
    data = StackData(x, y[:, None], torch.ones(len(x)), held_out)
    rules = CourseRules(n_steps=_STEPS, batch_size=len(x))
    courses = iter(lambda: StackCourse(means, "relu", Gaussian(), data, rules, generator), None)
    steps = (step for course in courses for step in course.run(_STEPS))
    return lambda: next(steps)


def in_the_papers_form(members: int | None, x: Tensor, y: Tensor) -> Callable[[], object]:
    """Steps of `LayerwiseInference`, of full batches and with the paper's settings for this table."""
    generator = torch.Generator().manual_seed(0)
    inference = bali.LayerwiseInference(
        network(members, generator),
        bali.likelihoods.Gaussian(),
        len(x),
        step_size=0.3,
        ema_rate=0.2,
        prior_variance={"0": 40.0, "2": 40.0 / (SIZES[1] + 1)},
        generator=generator,
    )
    return lambda: inference.step(x, y)


def measure(*, members: int, rows: int, rounds: int, warmup: int, repeats: int) -> list[Line]:
    x, y, source = yacht_rows(rows)
    calls = {
        "members": as_tables_do(members, x, y),
        "single": as_tables_do(1, x, y),
        "paper's members": in_the_papers_form(members, x, y),
        "paper's single": in_the_papers_form(None, x, y),
    }
    times = interleaved(calls, rounds, warmup, repeats=repeats, clock=time.process_time)
    return [
        {
            "members": members,
            "rows": len(x),
            "member_ms": 1e3 * times.median("members") / members,
            "single_ms": 1e3 * times.median("single"),
            "paper_member_ms": 1e3 * times.median("paper's members") / members,
            "paper_single_ms": 1e3 * times.median("paper's single"),
            "rounds": rounds,
            "data": source,
            "threads": torch.get_num_threads(),
        }
    ]


def jobs(
    *, members: int = MEMBERS, rows: int = N_ROWS, rounds: int = 40, warmup: int = 5, repeats: int = 20
) -> list[Measurement]:
    return [Measurement({}, lambda: measure(members=members, rows=rows, rounds=rounds, warmup=warmup, repeats=repeats))]


def bars(lines: Sequence[Line]) -> list[Bar]:
    (line,) = lines
    return [
        Bar(f"{line['members']} members: step of each", line["member_ms"], MEMBER_LIMIT, "ms"),
        Bar("one member alone: step", line["single_ms"], SINGLE_LIMIT, "ms"),
    ]


def section(lines: Sequence[Line]) -> list[str]:
    (line,) = lines
    rows = [
        (name, f"{line[f'{of}member_ms']:.3f}", f"{line[f'{of}single_ms']:.3f}")
        for name, of in (("`BALIRegressor`", ""), ("`LayerwiseInference`, the paper's form", "paper_"))
    ]
    return [
        *paragraph(
            f"{line['members']} networks 6-50-1 as one stack, {line['rows']} rows ({line['data']}), full batches, float32.",
            "Steps of `BALIRegressor` are those of a table's course, with its scores of held-out rows.",
            "The bars are for these. Processor time.",
            median_line(lines, "rounds"),
        ),
        "",
        *table(("update", f"one of {line['members']} members and step, ms", "one network alone, ms"), rows),
    ]


BENCH = Bench("members", "Many small networks", jobs, section, bars, threads=1)
