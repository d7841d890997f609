"""A prediction of `bali.fit` with many weight samples over as many plain forward passes of the same network."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn

import bali
from bali_benchmarks.performance.measurement import Bar, Bench, Line, Measurement, median_line, paragraph, table
from bali_benchmarks.performance.step_time import convolutional, wide
from bali_benchmarks.performance.timing import interleaved

#: Examples that the posterior is made from.
_FOR_POSTERIOR = 2000


@dataclass(frozen=True)
class Case:
    make: Callable[[], nn.Module]
    shape: tuple[int, ...]  # of an example
    samples: int
    passes: int  # plain ones that are timed, and counted for as many as there are samples
    limit: float
    rows: int = 10_000


CASES: dict[str, Case] = {
    "784-256-256-10": Case(partial(wide, 256), (784,), 128, 8, 0.35),
    "CNN with Linear(3136, 128)": Case(convolutional, (1, 28, 28), 8, 1, 0.7, rows=2000),
}


def measure(case: Case, *, rows: int | None, rounds: int, warmup: int = 1) -> list[Line]:
    generator = torch.Generator().manual_seed(0)
    n = case.rows if rows is None else rows
    torch.manual_seed(0)
    module = case.make()
    x = torch.randn(min(n, _FOR_POSTERIOR), *case.shape, generator=generator)
    y = torch.randint(10, (len(x),), generator=generator)
    fitted = bali.fit(module, (x, y), bali.likelihoods.Categorical(), epochs=0, seed=0, verbose=False)
    x = torch.randn(n, *case.shape, generator=generator)
    calls: dict[str, Callable[[], object]] = {
        "BALI": lambda: fitted.predict(x, case.samples),
        "plain": lambda: forward_passes(module, x, case.passes),
    }
    times = interleaved(calls, rounds, warmup, clock=time.process_time)
    plain = times.median("plain") * case.samples / case.passes
    return [
        {
            "rows": n,
            "samples": case.samples,
            "seconds": times.median("BALI"),
            "plain_seconds": plain,
            "plain_passes": case.passes,
            "ratio": times.median("BALI") / plain,
            "rounds": rounds,
            "threads": torch.get_num_threads(),
        }
    ]


@torch.no_grad()
def forward_passes(module: nn.Module, x: Tensor, passes: int) -> None:
    for _ in range(passes):
        module(x)


def jobs(cases: Mapping[str, Case] = CASES, *, rows: int | None = None, rounds: int = 5) -> list[Measurement]:
    def job(name: str, case: Case) -> Measurement:
        return Measurement({"network": name}, lambda: measure(case, rows=rows, rounds=rounds))

    return [job(name, case) for name, case in cases.items()]


def bars(lines: Sequence[Line]) -> list[Bar]:
    known = [line for line in lines if line["network"] in CASES]
    return [
        Bar(f"{line['network']}: prediction, of plain passes", line["ratio"], CASES[line["network"]].limit) for line in known
    ]


def section(lines: Sequence[Line]) -> list[str]:
    rows = [
        (
            line["network"],
            str(line["samples"]),
            f"{line['rows']:,}",
            f"{line['seconds']:.2f}",
            f"{line['plain_seconds']:.2f}",
            f"{line['ratio']:.2f}",
        )
        for line in lines
    ]
    return [
        *paragraph(
            "`predict` of a fitted network, over as many forward passes of the plain network without gradients as there are",
            "samples, all rows at once. Some of these are timed in each round and counted for all. Processor time.",
            median_line(lines, "rounds"),
        ),
        "",
        *table(("network", "samples", "rows", "seconds", "plain passes, seconds", "ratio"), rows),
    ]


BENCH = Bench("predict", "A prediction", jobs, section, bars, threads=1)
