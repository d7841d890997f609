"""Training time until the network is as good as Adam's, or MC dropout's, ever gets on validation rows.

All methods take turns of a few steps, each on a clock of its own that stands still while predictions are scored.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

import torch
from torch import Tensor

from bali.predictive import metrics
from bali_benchmarks.performance.images import Images, mnist
from bali_benchmarks.performance.measurement import Line, Measurement
from bali_benchmarks.performance.timing import Clock
from bali_benchmarks.performance.trainings import (
    SIZES,
    AdamTraining,
    AveragedTraining,
    DropoutTraining,
    Training,
    perceptron,
    shuffled_batches,
)

LEARNING_RATES = (5e-4, 1e-3, 2e-3)
DROPOUT = 0.1
BALI = "BALI"
Batches = list[tuple[Tensor, Tensor]]


@dataclass
class Racer:
    method: str
    settings: dict[str, Any]
    start: Callable[[], Training]
    seconds: float = 0.0
    steps: int = 0
    curve: list[tuple[int, float, float]] = field(default_factory=list)  # (steps, seconds, validation NLL)
    training: Training | None = None

    def run(self, batches: Batches, clock: Clock) -> Training:
        """These steps, on the racer's own clock; what a method prepares before its first step counts too."""
        begin = clock()
        training = self.start() if self.training is None else self.training
        for x, y in batches:
            training.step(x, y)
        self.seconds += clock() - begin
        self.steps += len(batches)
        self.training = training
        return training

    @property
    def best(self) -> tuple[int, float, float]:
        """The point of the curve with the lowest NLL; the first of equals."""
        return min(self.curve, key=lambda point: point[2], default=(0, 0.0, math.inf))

    def line(self) -> Line:
        steps, seconds, nll = self.best
        best = {"best_nll": nll, "steps_to_best": steps, "seconds_to_best": seconds, "steps": self.steps}
        return {"method": self.method, **self.settings} | best | {"curve": [list(point) for point in self.curve]}


def race(
    racers: Sequence[Racer],
    batches: Iterator[tuple[Tensor, Tensor]],
    validation: tuple[Tensor, Tensor],
    *,
    samples: int,
    chunk: int,
    patience: int,
    most_steps: int,
    clock: Clock = time.perf_counter,
) -> None:
    """Until no racer has improved in its last `patience` steps, or has taken `most_steps`. All see the same batches."""
    x, y = validation
    for turn in range(most_steps // chunk):
        running = [racer for racer in racers if racer.steps - racer.best[0] < patience]
        if not running:
            return
        rows = list(islice(batches, chunk))
        first = turn % len(running)
        for racer in running[first:] + running[:first]:
            predictive = racer.run(rows, clock).predict(x, samples)
            nll = -metrics.log_likelihood(predictive, y)
            racer.curve.append((racer.steps, round(racer.seconds, 4), round(nll, 5)))


def entrants(x: Tensor, seed: int, sizes: Sequence[int]) -> list[Racer]:
    def adam(learning_rate: float) -> Racer:
        return Racer("Adam", {"learning_rate": learning_rate}, lambda: AdamTraining(perceptron(sizes, seed), learning_rate))

    def dropout(learning_rate: float) -> Racer:
        return Racer(
            "MC dropout",
            {"learning_rate": learning_rate},
            lambda: DropoutTraining(perceptron(sizes, seed, DROPOUT), learning_rate),
        )

    own = Racer(BALI, {}, lambda: AveragedTraining(perceptron(sizes, seed), x, seed))
    return [own, *map(adam, LEARNING_RATES), *map(dropout, LEARNING_RATES)]


def measure(
    images: Images,
    seed: int,
    *,
    n_validation: int,
    batch: int,
    samples: int,
    chunk: int,
    patience: int,
    most_steps: int,
    sizes: Sequence[int],
) -> list[Line]:
    x, y = images.x_train[:-n_validation], images.y_train[:-n_validation]
    validation = images.x_train[-n_validation:], images.y_train[-n_validation:]
    racers = entrants(x, seed, sizes)
    batches = shuffled_batches(x, y, batch, torch.Generator().manual_seed(seed))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)  # of the dropout masks
        race(racers, batches, validation, samples=samples, chunk=chunk, patience=patience, most_steps=most_steps)
    common: Line = {"seed": seed, "samples": samples, "batch": batch, "chunk": chunk, "patience": patience}
    common |= {"data": images.source, "threads": torch.get_num_threads()}
    return [common | racer.line() for racer in racers]


def jobs(
    load: Callable[[], Images] = mnist,
    *,
    seeds: Sequence[int] = (0, 1, 2),
    n_validation: int = 10_000,
    batch: int = 2048,
    samples: int = 16,
    chunk: int = 20,
    patience: int = 400,
    most_steps: int = 3000,
    sizes: Sequence[int] = SIZES,
) -> list[Measurement]:
    def job(seed: int) -> Measurement:
        options = {"batch": batch, "samples": samples, "chunk": chunk, "patience": patience, "most_steps": most_steps}
        return Measurement({"seed": seed}, lambda: measure(load(), seed, n_validation=n_validation, sizes=sizes, **options))

    return [job(seed) for seed in seeds]
