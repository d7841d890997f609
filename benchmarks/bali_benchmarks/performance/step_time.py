"""The time of a step of BALI over the time of a step of fused Adam: same network, same rows."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from bali_benchmarks.performance.images import Images, mnist_or_random
from bali_benchmarks.performance.measurement import Bar, Bench, Line, Measurement, median_line, paragraph, table
from bali_benchmarks.performance.timing import interleaved
from bali_benchmarks.performance.trainings import (
    VARIANTS,
    AdamTraining,
    BALITraining,
    Training,
    endless_batches,
    perceptron,
)

#: At most so many times as long as a step of Adam.
LIMITS = {name: 1.6 if "exact" in name else 2.4 for name in VARIANTS}


def stepping(training: Training, images: Images, batch: int) -> Callable[[], None]:
    """A function that takes one more step each time it is called."""
    batches = endless_batches(images.x_train, images.y_train, batch)
    return lambda: training.step(*next(batches))


def measure(images: Images, *, batch: int, rounds: int, warmup: int, repeats: int) -> list[Line]:
    """A round has `repeats` steps of each: a multiple of what an inference does at every so many steps only."""
    trainings: dict[str, Training] = {"Adam": AdamTraining(perceptron(), 1e-3)}
    for name, variant in VARIANTS.items():
        trainings[name] = BALITraining(variant(perceptron(), images.x_train, 0))
    steps = {name: stepping(training, images, batch) for name, training in trainings.items()}
    times = interleaved(steps, rounds, warmup, repeats=repeats)
    return [
        {
            "variant": name,
            "ms": 1e3 * times.median(name),
            "adam_ms": 1e3 * times.median("Adam"),
            "ratio": times.ratio(name, "Adam"),
            "ratio_quartiles": times.quartiles_of_ratio(name, "Adam"),
            "rounds": rounds,
            "steps_per_round": repeats,
            "batch": batch,
            "data": images.source,
            "threads": torch.get_num_threads(),
        }
        for name in VARIANTS
    ]


def jobs(
    load: Callable[[], Images] = mnist_or_random,
    *,
    batch: int = 2048,
    rounds: int = 20,
    warmup: int = 2,
    repeats: int = 10,
) -> list[Measurement]:
    return [Measurement({}, lambda: measure(load(), batch=batch, rounds=rounds, warmup=warmup, repeats=repeats))]


def bars(lines: Sequence[Line]) -> list[Bar]:
    return [
        Bar(f"{line['variant']}: step, of Adam's", line["ratio"], LIMITS[line["variant"]])
        for line in lines
        if line["variant"] in LIMITS
    ]


def section(lines: Sequence[Line]) -> list[str]:
    first = lines[0]
    rows = [
        (
            line["variant"],
            f"{line['ms']:.1f}",
            f"{line['adam_ms']:.1f}",
            f"{line['ratio']:.2f}",
            "{:.2f} to {:.2f}".format(*line["ratio_quartiles"]),
        )
        for line in lines
    ]
    return [
        *paragraph(
            f"The network 784-256-256-10 with batches of {first['batch']:,} rows ({first['data']}), float32.",
            "Adam is torch's fused one, with the cross-entropy.",
            f"A round has {first['steps_per_round']} steps of each.",
            median_line(lines, "rounds"),
        ),
        "",
        *table(("method", "step, ms", "Adam's step, ms", "ratio", "middle half of the rounds"), rows),
    ]


BENCH = Bench("step", "A step", jobs, section, bars)
