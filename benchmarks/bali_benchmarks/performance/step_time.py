"""The time of a step of `bali.fit` over that of fused Adam, on networks that people have: same module, same batch size.

Both take their batches out of the same rows; forward and backward pass are part of the step. A round has as many steps as
the update takes until all that it does now and then was done. Times are those of the processor, so that other work on the
machine disturbs them little.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn

from bali.inference.joint_pass import Link
from bali.inference.network import Network
from bali.predictive.likelihoods import Categorical
from bali.training import course as courses
from bali.training.course import Course, Job
from bali.training.examples import InMemory
from bali.training.rules import MAX_BLOCK, Rules
from bali_benchmarks.lenet_study.lenet import lenet
from bali_benchmarks.networks.task_networks import RowGRU, RowTransformer, perceptron
from bali_benchmarks.performance.measurement import Bar, Bench, Line, Measurement, median_line, paragraph, table
from bali_benchmarks.performance.timing import interleaved
from bali_benchmarks.performance.trainings import AdamTraining, endless_batches

#: Steps of a round.
REPEATS = 20


@dataclass(frozen=True)
class Case:
    make: Callable[[], nn.Module]
    shape: tuple[int, ...]  # of an example
    batch: int
    limit: float | None  # of the ratio, if there is one
    rounds: int = 10
    n_classes: int = 10


def convolutional() -> nn.Sequential:
    """Two convolutions and a hidden layer of 128 on 3,136 inputs."""
    return nn.Sequential(
        *(nn.Conv2d(1, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(32, 64, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten()),
        *(nn.Linear(3136, 128), nn.ReLU(), nn.Linear(128, 10)),
    )


def one_convolution(channels: int) -> nn.Sequential:
    """3 × 3 from so many channels to as many, and a linear layer on the means of its outputs."""
    convolution = nn.Conv2d(channels, channels, 3, padding=1)
    return nn.Sequential(convolution, nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, 10))


def _images(channels: int) -> Case:
    """Sizes of images as those of a residual network for CIFAR with so many channels."""
    size = 2048 // channels
    return Case(partial(one_convolution, channels), (channels, size, size), 32, 3.0, rounds=6)


def wide(width: int) -> nn.Sequential:
    return perceptron(784, [width, width], 10)


CASES: dict[str, Case] = {
    "784-256-256-10, 2,048 rows": Case(partial(wide, 256), (784,), 2048, 1.5),
    "784-256-256-10, 256 rows": Case(partial(wide, 256), (784,), 256, 2.5),
    "CNN with Linear(3136, 128), 128 images": Case(convolutional, (1, 28, 28), 128, 2.0, rounds=6),
    "six layers of 128, 256 rows": Case(partial(perceptron, 10, [128] * 6, 2), (10,), 256, 2.5, n_classes=2),
    "LeNet-5, 512 images": Case(lenet, (1, 28, 28), 512, 1.2, rounds=6),
    "3 × 3 convolution of 64 channels, 32 images": _images(64),
    "3 × 3 convolution of 128 channels, 32 images": _images(128),
    "3 × 3 convolution of 256 channels, 32 images": _images(256),
    "GRU of 64 on 28 steps, 256 sequences": Case(RowGRU, (28, 28), 256, 1.8, rounds=6),
    "transformer of 2 layers of 64 on 28 tokens, 256 sequences": Case(RowTransformer, (28, 28), 256, 1.25, rounds=6),
    "784-2048-2048-10, 2,048 rows": Case(partial(wide, 2048), (784,), 2048, 2.0, rounds=2),
}


def fit_course(module: nn.Module, x: Tensor, y: Tensor, batch: int) -> tuple[Job, Course]:
    """A training of `bali.fit` before its first step."""
    network, examples = Network(module, has_optimizer=True, max_block=MAX_BLOCK), InMemory(x, y)
    job = Job(network, Categorical(), Link(), examples, examples, batch, None, 0, Rules(), x.device)
    return job, courses.start(job, prior_about_weights=False)


def fit_step(module: nn.Module, x: Tensor, y: Tensor, batch: int) -> Callable[[], None]:
    """A function that takes the next step of `bali.fit` each time it is called."""
    job, course = fit_course(module, x, y, batch)
    return lambda: courses.one_step(job, course)


def adam_step(module: nn.Module, x: Tensor, y: Tensor, batch: int) -> Callable[[], None]:
    training, batches = AdamTraining(module, 1e-3), endless_batches(x, y, batch)
    return lambda: training.step(*next(batches))


def measure(case: Case, *, rounds: int, repeats: int, warmup: int = 1) -> list[Line]:
    generator = torch.Generator().manual_seed(0)
    n = 4 * case.batch
    x = torch.randn(n, *case.shape, generator=generator)
    y = torch.randint(case.n_classes, (n,), generator=generator)
    calls: dict[str, Callable[[], object]] = {}
    for name, make in {"BALI": fit_step, "Adam": adam_step}.items():
        torch.manual_seed(0)
        calls[name] = make(case.make(), x, y, case.batch)
    times = interleaved(calls, rounds, warmup, repeats=repeats, clock=time.process_time)
    return [
        {
            "ms": 1e3 * times.median("BALI"),
            "adam_ms": 1e3 * times.median("Adam"),
            "ratio": times.ratio("BALI", "Adam"),
            "ratio_quartiles": times.quartiles_of_ratio("BALI", "Adam"),
            "rounds": rounds,
            "steps_per_round": repeats,
            "threads": torch.get_num_threads(),
        }
    ]


def jobs(cases: Mapping[str, Case] = CASES, *, rounds: int | None = None, repeats: int = REPEATS) -> list[Measurement]:
    def job(name: str, case: Case) -> Measurement:
        return Measurement({"network": name}, lambda: measure(case, rounds=rounds or case.rounds, repeats=repeats))

    return [job(name, case) for name, case in cases.items()]


def bars(lines: Sequence[Line]) -> list[Bar]:
    limits = {name: case.limit for name, case in CASES.items()}
    found = [(line, limits.get(line["network"])) for line in lines]
    return [Bar(f"{line['network']}: step, of Adam's", line["ratio"], limit) for line, limit in found if limit is not None]


def section(lines: Sequence[Line]) -> list[str]:
    rows = [
        (
            line["network"],
            f"{line['ms']:.1f}",
            f"{line['adam_ms']:.1f}",
            f"{line['ratio']:.2f}",
            "{:.2f} to {:.2f}".format(*line["ratio_quartiles"]),
        )
        for line in lines
    ]
    return [
        *paragraph(
            "A step of `bali.fit` beside one of torch's fused Adam with the cross-entropy: the same network and rows,",
            "float32, random numbers as data, forward and backward pass included.",
            f"A round has {lines[0]['steps_per_round']} steps of each, in which all that is done now and then is done.",
            "Processor time.",
            median_line(lines, "rounds"),
        ),
        "",
        *table(("network", "step, ms", "Adam's step, ms", "ratio", "middle half of the rounds"), rows),
    ]


BENCH = Bench("step", "A step", jobs, section, bars, threads=1)
