"""One of several processes that measure a step together: `python -m bali_benchmarks.performance.distributed_process`.

All processes start once. In every round, one of them steps alone, then two together, and so on, while the others wait.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

import bali
from bali.inference.distributed import Group
from bali_benchmarks.performance.trainings import mnist_inference, perceptron

PARTS = ("statistics", "messages", "factorisation")


class Clocks(NamedTuple):
    """The clock on the wall, and the processor's time of this process, which others that compute do not change."""

    wall: float
    processor: float

    @classmethod
    def now(cls) -> Clocks:
        return cls(time.perf_counter(), time.process_time())

    def since(self, start: Clocks) -> Clocks:
        return Clocks(self.wall - start.wall, self.processor - start.processor)

    def later(self, by: Clocks) -> Clocks:
        return Clocks(self.wall + by.wall, self.processor + by.processor)


class TimedGroup(Group):
    """Knows when messages began and ended, and how many bytes they had."""

    def __init__(self, process_group: dist.ProcessGroup, device: torch.device) -> None:
        super().__init__(process_group, device)
        self.first: Clocks | None = None  # when the first message of the step began
        self.spent = Clocks(0.0, 0.0)  # in messages, and waiting for them
        self.summed = self.results = 0

    @contextmanager
    def _timed(self) -> Iterator[None]:
        start = Clocks.now()
        if self.first is None:
            self.first = start
        yield
        self.spent = self.spent.later(Clocks.now().since(start))

    def sum(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        self.summed += sum(t.numel() * t.element_size() for t in tensors)
        with self._timed():
            return super().sum(tensors)

    def exchange(self, tensors: Sequence[Sequence[Tensor]]) -> list[list[Tensor]]:
        self.results += sum(t.numel() * t.element_size() for own in tensors for t in own)
        with self._timed():
            return super().exchange(tensors)


def timed_step(inference: bali.LayerwiseInference, x: Tensor, y: Tensor) -> dict[str, float]:
    """Seconds by part; statistics are all that comes before the first message."""
    group = inference.setup.group
    assert isinstance(group, TimedGroup)
    group.first, group.spent, group.summed, group.results = None, Clocks(0.0, 0.0), 0, 0
    start = Clocks.now()
    inference.step(x, y)
    whole = Clocks.now().since(start)
    assert group.first is not None
    before = group.first.since(start)
    rest = whole.since(before).since(group.spent)
    parts = dict(zip(PARTS, (before.wall, group.spent.wall, rest.wall), strict=True))
    parts |= {"work": before.processor + rest.processor}  # of statistics and factorisation
    return parts | {"step": whole.wall, "summed": float(group.summed), "results": float(group.results)}


def random_batch(n: int, sizes: Sequence[int]) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    return torch.rand(n, sizes[0], generator=generator), torch.randint(sizes[-1], (n,), generator=generator)


def measure(sizes: list[int], rows: int, counts: list[int], rounds: int, warmup: int) -> dict[str, dict[str, float]]:
    """Medians over the rounds of this process, by number of processes; "plain" is one that never heard of others."""
    x, y = random_batch(rows, sizes)
    rank, device = bali.distributed.rank(), torch.device("cpu")
    with bali.distributed.using(None):
        plain = mnist_inference(perceptron(sizes), 60_000) if rank == 0 else None
    together: dict[int, bali.LayerwiseInference] = {}
    for count in counts:
        group = dist.new_group(list(range(count)))
        if rank < count:
            with bali.distributed.using(None):
                inference = mnist_inference(perceptron(sizes), 60_000)
            assert isinstance(group, dist.ProcessGroup)
            inference.setup = replace(inference.setup, group=TimedGroup(group, device))
            together[count] = inference
    found: dict[str, list[dict[str, float]]] = {}
    for turn in range(warmup + rounds):
        lines: dict[str, dict[str, float]] = {}
        if plain is not None:
            start = time.perf_counter()
            plain.step(x, y)
            lines["plain"] = {"step": time.perf_counter() - start}
        for count in counts:
            dist.barrier()  # nobody computes while others are measured
            if count in together:
                low, high = rows * rank // count, rows * (rank + 1) // count
                lines[str(count)] = timed_step(together[count], x[low:high], y[low:high])
        dist.barrier()
        if turn >= warmup:
            for name, line in lines.items():
                found.setdefault(name, []).append(line)
    return {name: {key: statistics.median(line[key] for line in own) for key in own[0]} for name, own in found.items()}


def bandwidth(numbers: int, rounds: int = 7) -> dict[str, float]:
    """Bytes a second of a large sum over two processes, and the seconds that a sum of one number takes."""
    group = dist.new_group([0, 1])
    if bali.distributed.rank() > 1:
        return {}
    assert isinstance(group, dist.ProcessGroup)
    own, seconds = Group(group, torch.device("cpu")), {}
    for name, size in (("large", numbers), ("small", 1)):
        message, times = torch.zeros(size), []
        for _ in range(rounds):
            start = time.perf_counter()
            own.sum([message])
            times.append(time.perf_counter() - start)
        seconds[name] = statistics.median(times)
    return {"bytes_per_second": 4 * numbers / seconds["large"], "latency": seconds["small"] / 2}


if __name__ == "__main__":
    torch.set_num_threads(1)
    bali.distributed.start(timeout=600)
    request = json.loads(sys.argv[1])
    result = {"parts": measure(**request), "speed": bandwidth(2_000_000)}
    print(json.dumps(result))
