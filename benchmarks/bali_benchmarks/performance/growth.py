"""How the time and memory of a step grow with rows, width, depth and the number of data, for BALI and Adam."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor

from bali_benchmarks.performance import memory
from bali_benchmarks.performance.measurement import Line, Measurement
from bali_benchmarks.performance.timing import interleaved
from bali_benchmarks.performance.trainings import AdamTraining, BALITraining, Training, mnist_inference, perceptron

METHODS = ("BALI", "Adam")
BASE = {"rows": 2048, "width": 256, "depth": 2, "data": 60_000}
AXES: dict[str, tuple[int, ...]] = {
    "rows": (256, 512, 1024, 2048, 4096, 8192),
    "width": (64, 128, 256, 512, 1024, 2048),
    "depth": (1, 2, 4, 8),
    "data": (1_000, 10_000, 100_000, 1_000_000),
}
N_INPUTS, N_CLASSES = 784, 10


def layer_sizes(width: int, depth: int, inputs: int = N_INPUTS) -> list[int]:
    return [inputs, *[width] * depth, N_CLASSES]


def training(method: str, sizes: Sequence[int], n_data: int) -> Training:
    module = perceptron(sizes)
    return AdamTraining(module, 1e-3) if method == "Adam" else BALITraining(mnist_inference(module, n_data))


def random_batch(n: int, sizes: Sequence[int]) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    return torch.rand(n, sizes[0], generator=generator), torch.randint(sizes[-1], (n,), generator=generator)


def batch_of_one(rows: int, sizes: Sequence[int]) -> Callable[[], tuple[Tensor, Tensor]]:
    batch = random_batch(rows, sizes)
    return lambda: batch


def batch_of_many(rows: int, n_data: int, sizes: Sequence[int]) -> Callable[[], tuple[Tensor, Tensor]]:
    """Drawn from so many rows in memory, one byte a pixel: taking them out is part of the step."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randint(256, (n_data, sizes[0]), generator=generator, dtype=torch.uint8)
    y = torch.randint(sizes[-1], (n_data,), generator=generator)

    def draw() -> tuple[Tensor, Tensor]:
        index = torch.randint(n_data, (rows,), generator=generator)
        return x[index].float().div_(255.0), y[index]

    return draw


def measure(axis: str, value: int, base: Mapping[str, int], *, rounds: int, warmup: int, inputs: int) -> list[Line]:
    """Step times of both methods in one run; peak memory for the axes that have an influence on it."""
    at = dict(base) | {axis: value}
    sizes = layer_sizes(at["width"], at["depth"], inputs)
    batch = batch_of_many(at["rows"], value, sizes) if axis == "data" else batch_of_one(at["rows"], sizes)

    def stepping(method: str) -> Callable[[], None]:
        trained = training(method, sizes, at["data"])
        return lambda: trained.step(*batch())

    times = interleaved({method: stepping(method) for method in METHODS}, rounds, warmup)
    lines: list[Line] = []
    for method in METHODS:
        line: Line = {"axis": axis, "value": value, "method": method, "ms": 1e3 * times.median(method), "rounds": rounds}
        line["base"] = dict(base) | {"inputs": inputs}
        if axis != "data":
            line |= memory.peak_in_new_process(method, sizes, at["rows"])
        lines.append(line | {"threads": torch.get_num_threads()})
    return lines


def jobs(
    *,
    axes: Mapping[str, Sequence[int]] = AXES,
    base: Mapping[str, int] = BASE,
    rounds: int = 20,
    warmup: int = 2,
    inputs: int = N_INPUTS,
) -> list[Measurement]:
    def job(axis: str, value: int) -> Measurement:
        run = {"rounds": rounds, "warmup": warmup, "inputs": inputs}
        return Measurement({"axis": axis, "value": value}, lambda: measure(axis, value, base, **run))

    return [job(axis, value) for axis, values in axes.items() for value in values]
