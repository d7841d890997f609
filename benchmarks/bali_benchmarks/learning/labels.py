"""Which label to buy next: rows chosen by `bali.active.query`, and rows drawn at random, beside each other."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

import bali
from bali.training.active import Method
from bali.training.conditioning import Conditioned
from bali.training.fitted import Fitted
from bali_benchmarks.datasets.data_error import DataError
from bali_benchmarks.datasets.storage import data_folder
from bali_benchmarks.learning.continual import Size
from bali_benchmarks.lenet_study.lenet import lenet
from bali_benchmarks.networks.task_rows import Pair, Rows, image_rows, table_rows
from bali_benchmarks.performance.measurement import Line

#: Labels that are there without being counted: the validation rows of the digits.
N_VALIDATION = 100
#: Rows of the pool that are looked at in a round, drawn anew each time.
_LOOKED_AT = 2000
#: Weight samples of LeNet that the accuracy is of: a pass over all test rows for each.
_TEST_SAMPLES = 16
#: Weight samples of the model of numbers, for which they cost little.
_SAMPLES = 512
_AIRFOIL = "uci_regression/airfoil.npz"


@dataclass(frozen=True)
class LabelTask:
    first: int
    each: int  # labels of a round
    last: int
    method: Method
    is_classes: bool
    enough: float | None = None  # the score with which no more are bought


TASKS = {
    "mnist": LabelTask(20, 10, 300, "batchbald", True, 0.95),
    "airfoil": LabelTask(20, 45, 200, "epig", False),
    "powerplant": LabelTask(20, 45, 200, "epig", False),
}


def labels(name: str, chooser: str, seed: int, size: Size) -> Iterator[Line]:
    """A line for each number of labels: accuracy of classes, RMSE over the targets' deviation of numbers."""
    task = TASKS[name]
    rows = image_rows("mnist", (1, 28, 28), seed) if task.is_classes else _number_rows(name, seed)
    pool, test = rows.train, rows.test
    generator = torch.Generator().manual_seed(seed)
    chosen = _first(pool[1], task, generator)
    last = task.last if size.rows is None else min(task.last, task.first + task.each)
    while True:
        began = time.perf_counter()
        validation = (rows.validation[0][:N_VALIDATION], rows.validation[1][:N_VALIDATION]) if task.is_classes else None
        data = pool[0][chosen], pool[1][chosen]
        fitted = _fit(task, data, validation, seed * 1000 + len(chosen), size)
        score = _score(fitted, test)
        fit_seconds, began = time.perf_counter() - began, time.perf_counter()
        left = _left(len(pool[1]), chosen, generator)
        is_enough = task.enough is not None and score >= task.enough
        n = 0 if is_enough else min(task.each, last - len(chosen))
        if n > 0 and chooser == "random":
            new = left[:n]
        elif n > 0:
            candidates = left[:_LOOKED_AT]
            picked = bali.active.query(
                fitted, pool[0][candidates], n, task.method, n_samples=64 if task.is_classes else _SAMPLES, seed=seed
            )
            new = candidates[torch.from_numpy(picked)]
        yield {"labels": len(chosen), "score": score, "seconds": fit_seconds, "query_seconds": time.perf_counter() - began}
        if n <= 0:
            return
        chosen = torch.cat([chosen, new])


def _number_rows(name: str, seed: int) -> Rows:
    """Of airfoil, which is not among the paper's sets and of which one split is published, a random fifth is for testing."""
    if name != "airfoil":
        return table_rows(name, seed)
    folder = data_folder()
    if folder is None or not (folder / _AIRFOIL).is_file():
        raise DataError(f"there is no file {_AIRFOIL}; set BALI_DATA to a folder that has it")
    with np.load(folder / _AIRFOIL, allow_pickle=False) as data:
        x, y = torch.from_numpy(data["X"]).double(), torch.from_numpy(data["y"]).double().reshape(-1, 1)
    order = torch.randperm(len(y), generator=torch.Generator().manual_seed(seed))
    n_test = len(y) // 5
    train, test = order[n_test:], order[:n_test]
    shift, scale = (torch.cat([x, y], 1)[train].mean(0), torch.cat([x, y], 1)[train].std(0))
    x, y = (x - shift[:-1]) / scale[:-1], (y - shift[-1]) / scale[-1]
    return Rows((x[train], y[train]), (x[:0], y[:0]), (x[test], y[test]))


def labels_to(lines: Sequence[Line], accuracy: float) -> int | None:
    """The number of labels with which the accuracy was first reached."""
    return next((line["labels"] for line in lines if line["score"] >= accuracy), None)


def _fit(task: LabelTask, data: Pair, validation: Pair | None, seed: int, size: Size) -> Fitted | Conditioned:
    """LeNet of digits; of numbers the model for few rows, which needs none held out."""
    if not task.is_classes:
        return bali.surrogate(*data, seed=seed)
    likelihood = bali.likelihoods.Categorical()
    return bali.fit(lenet(seed=seed), data, likelihood, validation=validation, seed=seed, epochs=size.epochs, verbose=False)


def _first(y: Tensor, task: LabelTask, generator: torch.Generator) -> Tensor:
    """Of classes, as many of each."""
    order = torch.randperm(len(y), generator=generator)
    if not task.is_classes:
        return order[: task.first]
    each = task.first // 10
    return torch.cat([order[y[order] == c][:each] for c in range(10)])


def _left(n: int, chosen: Tensor, generator: torch.Generator) -> Tensor:
    order = torch.randperm(n, generator=generator)
    return order[~torch.isin(order, chosen)]


def _score(model: Fitted | Conditioned, test: Pair) -> float:
    if isinstance(model, Conditioned):
        return float((model.predict(test[0], _SAMPLES).mean - test[1]).square().mean().sqrt())
    mean = torch.cat([chunk.mean for chunk in model.predict_chunks(test[0], _TEST_SAMPLES)])
    return float((mean.argmax(-1) == test[1]).double().mean())
