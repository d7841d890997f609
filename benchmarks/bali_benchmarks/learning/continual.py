"""MNIST as a sequence of tasks: the posterior of one is the prior of the next, and no row is kept."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

import bali
from bali.training.fitted import Fitted
from bali_benchmarks.networks.task_networks import perceptron
from bali_benchmarks.networks.task_rows import Pair, image_rows
from bali_benchmarks.performance.measurement import Line

#: The output layer of a split network, by its place in the module.
HEAD = "4"


@dataclass(frozen=True)
class Size:
    """How much of the data, and for how long; None is all, and until it stops by itself."""

    rows: int | None = None
    epochs: int | None = None


def permuted(seed: int, n_tasks: int, done: Sequence[Line], state: Path, size: Size) -> Iterator[Line]:
    """Pixels in another order in every task, one network 100-100 with one output layer for all. A line after each task."""
    train, test = _digits(seed, size)
    module = _seeded(seed, (100, 100), 10)
    orders = [torch.arange(784), *(torch.randperm(784, generator=_generator(1000 * seed + t)) for t in range(1, n_tasks))]
    started = len(done)
    fitted = bali.load(state, module=module) if started else None
    assert fitted is None or isinstance(fitted, Fitted)
    for task in range(started, n_tasks):
        began = time.perf_counter()
        data = train[0][:, orders[task]], train[1]
        fitted = _fit(module, data, fitted, 100 * seed + task, size)
        accuracies = [_accuracy(fitted, (test[0][:, orders[t]], test[1])) for t in range(task + 1)]
        fitted.save(state)  # last, so that there is hardly a moment when it is a task ahead of the lines
        yield _line(task + 1, accuracies, fitted, began)


def split(seed: int, size: Size) -> Iterator[Line]:
    """Two digits a task, one network 256-256 with an output layer for each task."""
    train, test = _digits(seed, size)
    module = _seeded(seed, (256, 256), 2)
    heads: list[Fitted] = []
    for task in range(5):
        began = time.perf_counter()
        module = _seeded(seed + task, (256, 256), 2)
        fitted = _fit(module, _two(train, task), heads[-1] if heads else None, 100 * seed + task, size, [HEAD])
        heads.append(fitted)
        accuracies = [_accuracy(fitted.with_layers_of(heads[t], [HEAD]), _two(test, t)) for t in range(task + 1)]
        yield _line(task + 1, accuracies, fitted, began)


def _fit(module: nn.Module, data: Pair, before: Fitted | None, seed: int, size: Size, new: Sequence[str] = ()) -> Fitted:
    prior = None if before is None else before.as_prior(new=new)
    likelihood = bali.likelihoods.Categorical()
    return bali.fit(module, data, likelihood, prior=prior, seed=seed, epochs=size.epochs, verbose=False)


def _line(tasks: int, accuracies: Sequence[float], fitted: Fitted, began: float) -> Line:
    return {
        "tasks": tasks,
        "accuracy": sum(accuracies) / len(accuracies),
        "accuracies": [round(a, 4) for a in accuracies],
        "steps": len(fitted.history.losses[0]),
        "seconds": time.perf_counter() - began,
    }


def _digits(seed: int, size: Size) -> tuple[Pair, Pair]:
    rows = image_rows("mnist", (784,), seed, size.rows)
    x, y = (torch.cat([a, b]) for a, b in zip(rows.train, rows.validation, strict=True))
    return (x, y), rows.test


def _two(data: Pair, task: int) -> Pair:
    chosen = data[1] // 2 == task
    return data[0][chosen], data[1][chosen] % 2


def _accuracy(fitted: Fitted, test: Pair) -> float:
    """Of the predictive distribution."""
    x, y = test
    found: list[Tensor] = [chunk.mean.argmax(-1) for chunk in fitted.predict_chunks(x, 32)]
    return float((torch.cat(found) == y).double().mean())


def _seeded(seed: int, widths: Sequence[int], n_outputs: int) -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return perceptron(784, widths, n_outputs)


def _generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)
