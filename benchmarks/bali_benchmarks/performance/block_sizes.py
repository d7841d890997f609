"""Wide layers in blocks: what they save, and what they cost in quality."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import replace

import torch

import bali
from bali.inference.network import Network
from bali.inference.state import State
from bali.layers.blocks import MAX_BLOCK
from bali_benchmarks.performance.images import Images, mnist_or_random
from bali_benchmarks.performance.measurement import Bar, Bench, Line, Measurement, paragraph, table
from bali_benchmarks.performance.timing import interleaved
from bali_benchmarks.performance.trainings import BALITraining, endless_batches, mnist_inference, perceptron

SIZES = (784, 1024, 1024, 10)
#: 0 stands for layers in one piece.
BLOCKS = (0, 512, 256, 128)


def in_blocks(inference: bali.LayerwiseInference, max_block: int) -> bali.LayerwiseInference:
    """The same before its first step, with other blocks than the library's own."""
    network = Network(inference.module, max_block=max_block or max(p.numel() for p in inference.module.parameters()))
    inference.setup = replace(inference.setup, network=network)
    inference.state = State(inference.setup.initial_layers(), inference.state.generator)
    return inference


def measure(
    images: Images, seed: int, *, sizes: Sequence[int], blocks: Sequence[int], batch: int, steps: int, samples: int
) -> list[Line]:
    """All are trained at once, in turns, with the same batches from the same start."""
    trained = {
        block: BALITraining(in_blocks(mnist_inference(perceptron(sizes, seed), len(images.x_train), seed), block))
        for block in blocks
    }

    def stepping(training: BALITraining) -> Callable[[], None]:
        batches = endless_batches(images.x_train, images.y_train, batch)
        return lambda: training.step(*next(batches))

    times = interleaved({str(block): stepping(training) for block, training in trained.items()}, steps, warmup=0)
    lines: list[Line] = []
    for block, training in trained.items():
        predictive = training.predict(images.x_test, samples)
        right = (predictive.mean.argmax(-1) == images.y_test).double().mean()
        lines.append(
            {
                "max_block": block,
                "ms": 1e3 * times.median(str(block)),
                "nll": -float(predictive.log_prob(images.y_test).mean()),
                "accuracy": float(right),
                "sizes": list(sizes),
                "batch": batch,
                "steps": steps,
                "samples": samples,
                "data": images.source,
                "threads": torch.get_num_threads(),
            }
        )
    return lines


def jobs(
    load: Callable[[], Images] = mnist_or_random,
    *,
    seeds: Sequence[int] = (0, 1),
    sizes: Sequence[int] = SIZES,
    blocks: Sequence[int] = BLOCKS,
    batch: int = 1024,
    steps: int = 300,
    samples: int = 32,
) -> list[Measurement]:
    how = {"batch": batch, "steps": steps, "samples": samples}

    def job(seed: int) -> Measurement:
        return Measurement({"seed": seed}, lambda: measure(load(), seed, sizes=sizes, blocks=blocks, **how))

    return [job(seed) for seed in seeds]


def bars(_lines: Sequence[Line]) -> list[Bar]:
    return []  # reported, not limited


def section(lines: Sequence[Line]) -> list[str]:
    first = lines[0]
    by_block: dict[int, list[Line]] = {}
    for line in lines:
        by_block.setdefault(line["max_block"], []).append(line)

    def mean(own: Sequence[Line], key: str) -> float:
        return statistics.mean(line[key] for line in own)

    whole = mean(by_block[0], "ms") if 0 in by_block else float("nan")
    rows = [
        (
            str(block) if block else "in one piece",
            f"{mean(own, 'ms'):.0f}",
            f"{mean(own, 'ms') / whole:.2f}",
            ", ".join(f"{line['nll']:.4f}" for line in own),
            ", ".join(f"{100 * line['accuracy']:.2f} %" for line in own),
        )
        for block, own in by_block.items()
    ]
    return [
        *paragraph(
            f"The network {'-'.join(map(str, first['sizes']))}, {first['batch']:,} rows a step ({first['data']}), float32,",
            f"after {first['steps']} steps from the same start with the same batches, taken in turns. Layers are cut",
            f"into blocks of at most so many inputs and outputs; the library does so above {MAX_BLOCK:,}.",
            "Test NLL and accuracy of",
            f"{first['samples']} weight samples, one for each seed; threads: {first['threads']}.",
        ),
        "",
        *table(("largest block", "step, ms", "of one piece", "test NLL", "accuracy"), rows),
    ]


BENCH = Bench("blocks", "Wide layers in blocks", jobs, section, bars)
