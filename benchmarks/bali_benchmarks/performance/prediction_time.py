"""Prediction with many posterior samples over as many plain forward passes of the same network."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import nn

from bali.inference.prediction import Method
from bali_benchmarks.performance.images import Images, mnist_or_random
from bali_benchmarks.performance.measurement import Bar, Bench, Line, Measurement, median_line, paragraph, table
from bali_benchmarks.performance.timing import interleaved
from bali_benchmarks.performance.trainings import endless_batches, mnist_inference, perceptron

METHODS: tuple[Method, ...] = ("weight", "rowwise")
LIMIT = 0.5  # of the plain passes, for the best method


def measure(
    images: Images, *, rows: int, samples: int, passes: int, batch: int, steps: int, rounds: int, warmup: int
) -> list[Line]:
    """`passes` plain forward passes are timed and counted for `samples` of them."""
    module = perceptron()
    inference = mnist_inference(module, len(images.x_train))
    batches = endless_batches(images.x_train, images.y_train, batch)
    for _ in range(steps):
        inference.step(*next(batches))
    x, plain = images.x_test[:rows], perceptron()

    def predicting(method: Method) -> Callable[[], object]:
        return lambda: inference.predict(x, samples, method=method)

    calls: dict[str, Callable[[], object]] = {method: predicting(method) for method in METHODS}
    calls["plain"] = lambda: forward_passes(plain, x, passes)
    times = interleaved(calls, rounds, warmup)
    plain_seconds = times.median("plain") * samples / passes
    return [
        {
            "method": method,
            "rows": len(x),
            "samples": samples,
            "seconds": times.median(method),
            "plain_seconds": plain_seconds,
            "plain_passes": passes,
            "ratio": times.median(method) / plain_seconds,
            "rounds": rounds,
            "data": images.source,
            "threads": torch.get_num_threads(),
        }
        for method in METHODS
    ]


@torch.no_grad()
def forward_passes(module: nn.Module, x: torch.Tensor, passes: int) -> None:
    for _ in range(passes):
        module(x)


def jobs(
    load: Callable[[], Images] = mnist_or_random,
    *,
    rows: int = 10_000,
    samples: int = 128,
    passes: int = 16,
    batch: int = 2048,
    steps: int = 20,
    rounds: int = 20,
    warmup: int = 1,
) -> list[Measurement]:
    sizes = {"rows": rows, "samples": samples, "passes": passes, "batch": batch, "steps": steps}
    return [Measurement({}, lambda: measure(load(), **sizes, rounds=rounds, warmup=warmup))]


def bars(lines: Sequence[Line]) -> list[Bar]:
    best = min(lines, key=lambda line: float(line["ratio"]))
    return [Bar(f"prediction (method {best['method']}), of plain forward passes", best["ratio"], LIMIT)]


def section(lines: Sequence[Line]) -> list[str]:
    first = lines[0]
    rows = [
        (f"`{line['method']}`", f"{line['seconds']:.2f}", f"{line['plain_seconds']:.2f}", f"{line['ratio']:.2f}")
        for line in lines
    ]
    return [
        *paragraph(
            f"`predict` with {first['samples']} posterior samples for {first['rows']:,} rows ({first['data']}),",
            "over as many",
            f"forward passes of the same network without gradients ({first['plain_passes']} are timed in each round).",
            median_line(lines, "rounds"),
        ),
        "",
        *table(("method", "seconds", "plain passes, seconds", "ratio"), rows),
    ]


BENCH = Bench("predict", "A prediction", jobs, section, bars)
