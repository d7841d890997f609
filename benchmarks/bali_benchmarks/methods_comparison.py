"""Every method on the splits that its authors used, under one budget; MAP and MC dropout on MNIST as in the paper.

All published splits of a set are fitted at once. Every finished pair of set and method is appended to a JSON-lines file, one
line for each split, and a run that was interrupted goes on where it stopped.
"""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import joblib
import numpy as np
import torch
from numpy.typing import NDArray
from rich.progress import track
from torch import Tensor

from bali.predictive import metrics
from bali.predictive.mixtures import ClassPredictive, RegressionPredictive
from bali_benchmarks import datasets
from bali_benchmarks.baselines.method import Method, Task
from bali_benchmarks.baselines.selection import Budget, fit_members
from bali_benchmarks.baselines.table import METHODS
from bali_benchmarks.baselines.training import train
from bali_benchmarks.lines import append_line, read_lines, write_lines
from bali_benchmarks.methods_page import of_splits, to_markdown
from bali_benchmarks.threads import threads_for

Line = dict[str, Any]

REGRESSION_SETS = ("yacht", "concrete", "energy", "redwine")
SETS = (*REGRESSION_SETS, "mnist")
HIDDEN, ACTIVATION = (50,), "relu"
#: Draws from the posterior behind a test score, and how many of them are made at a time.
N_DRAWS, DRAWS_AT_A_TIME = 512, 64

#: The paper's settings for MNIST (its appendix on hyperparameters), with weight decay as the prior precision it stands for.
#: It takes 30,000 steps; here the last of a sixth as many have a tenth of the learning rate, to come to rest.
MNIST_HIDDEN, MNIST_ACTIVATION, MNIST_BATCH, MNIST_STEPS, MNIST_LAST_STEPS = (256, 256), "leaky_tanh", 2048, 4000, 1000
MNIST_DECAY, MNIST_RATE, MNIST_DROPOUT = 1e-4, 0.002, 0.1
MNIST_METHODS: dict[str, dict[str, float]] = {"map": {}, "mc_dropout": {"rate": MNIST_DROPOUT}}
MNIST_DRAWS, MNIST_DRAWS_AT_A_TIME = 128, 4


@dataclass(frozen=True)
class MethodRun:
    """One method fitted to all splits of one set."""

    name: str
    method: str


def jobs(sets: Sequence[str] = SETS, methods: Sequence[str] | None = None) -> list[MethodRun]:
    """What there is to do, or an error that says which sets and methods there are."""
    methods = list(METHODS) if methods is None else methods
    for given, known, what in ((sets, SETS, "set"), (methods, METHODS, "method")):
        unknown = [name for name in given if name not in known]
        if unknown:
            raise ValueError(f"there is no {what} {unknown[0]!r} in this comparison; there are {', '.join(known)}")
    return [MethodRun(name, m) for name in sets for m in methods if name != "mnist" or m in MNIST_METHODS]


def run_job(job: MethodRun, budget: Budget, n_splits: int | None = None) -> list[Line]:
    """The lines of one job, on one thread: several of them share the machine."""
    data = datasets.load(job.name)
    with threads_for((1,)):
        if job.name == "mnist":
            scores = [mnist_scores(data, job.method)]
        else:
            scores = regression_scores(data, METHODS[job.method], budget, n_splits=n_splits)
    common = {"set": job.name, "method": job.method, "splits": len(scores), "of_splits": data.n_splits}
    return [common | {"split": k} | score for k, score in enumerate(scores)]


# --- regression -------------------------------------------------------------------------------------------------


def regression_scores(
    data: datasets.Dataset, kind: type[Method], budget: Budget, seed: int = 0, *, n_splits: int | None = None
) -> list[Line]:
    """Test scores of all published splits, or of the first ones, in the units of the targets."""
    start = time.perf_counter()
    splits = [data.split(k) for k in range(min(n_splits or data.n_splits, data.n_splits))]
    x, x_test, _, _ = _standardised([s.X_train for s in splits], [s.X_test for s in splits])
    columns = [s.y_train[:, None] for s in splits], [s.y_test[:, None] for s in splits]
    y, _, mean, scale = _standardised(*columns)
    fitted = fit_members(kind, x, y, hidden_layer_sizes=HIDDEN, activation=ACTIVATION, budget=budget, seed=seed)
    if fitted.interrupted:  # such a fit has not seen all rows
        raise KeyboardInterrupt
    generator = torch.Generator().manual_seed(seed)
    outputs = torch.cat(
        [fitted.outputs(x_test, DRAWS_AT_A_TIME, generator) for _ in range(N_DRAWS // DRAWS_AT_A_TIME)]
    ).double()
    noise = fitted.noise_variance().double()
    seconds = time.perf_counter() - start
    lines = []
    for k, split in enumerate(splits):
        predictive = RegressionPredictive(outputs[:, k], noise[k].reshape(1, 1, 1)).affine(scale[k, 0], mean[k, 0])
        target = torch.as_tensor(split.y_test)
        lines.append(
            {
                "rmse": metrics.rmse(predictive, target),
                "log_likelihood": metrics.log_likelihood(predictive, target),
                "settings": fitted.settings[k],
                "steps": fitted.steps[k],
                "noise_factor": float(fitted.noise_factor[k]),
                "seconds": round(seconds, 1),
                "budget": asdict(budget),
            }
        )
    return lines


def _standardised(
    train_rows: Sequence[NDArray[Any]], test_rows: Sequence[NDArray[Any]]
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Training and test rows (S, n, D) at the unit scale of the training rows of each split; means and scales (S, 1, D)."""
    train, test = np.stack(train_rows), np.stack(test_rows)
    mean, scale = train.mean(1, keepdims=True), train.std(1, keepdims=True)
    scale[scale == 0.0] = 1.0
    standard = [torch.as_tensor((rows - mean) / scale, dtype=torch.float32) for rows in (train, test)]
    return standard[0], standard[1], torch.as_tensor(mean), torch.as_tensor(scale)


# --- MNIST ------------------------------------------------------------------------------------------------------


def mnist_scores(
    data: datasets.Dataset, name: str, steps: int = MNIST_STEPS, last_steps: int = MNIST_LAST_STEPS, seed: int = 0
) -> Line:
    """Test scores with the paper's settings, after so many steps and the last ones; pixels are numbers from 0 to 1."""
    start = time.perf_counter()
    split = data.split(0)
    n = len(split.y_train)
    x, x_test = (torch.as_tensor(rows, dtype=torch.float32) / 255.0 for rows in (split.X_train, split.X_test))
    y = torch.as_tensor(split.y_train)
    settings = {"learning_rate": MNIST_RATE, "prior_precision": MNIST_DECAY * n} | MNIST_METHODS[name]
    method = METHODS[name](**settings)
    slower = METHODS[name](**(settings | {"learning_rate": 0.1 * MNIST_RATE}))
    task = Task((x.shape[1], *MNIST_HIDDEN, len(data.class_names)), MNIST_ACTIVATION, 1, n, classification=True)
    generator = torch.Generator().manual_seed(seed)
    state = method.start(task, generator)
    for stage, n_steps in ((method, steps), (slower, last_steps)):
        state = train(stage, task, state, x, y, torch.arange(n)[None], n_steps, MNIST_BATCH, generator)
    probabilities = [
        method.outputs(task, state, x_test[None], MNIST_DRAWS_AT_A_TIME, generator)[:, 0].softmax(-1).mean(0)
        for _ in range(MNIST_DRAWS // MNIST_DRAWS_AT_A_TIME)
    ]
    predictive = ClassPredictive(torch.stack(probabilities))
    target = torch.as_tensor(split.y_test)
    return {
        "accuracy": metrics.accuracy(predictive, target),
        "log_likelihood": metrics.log_likelihood(predictive, target),
        "ece": metrics.expected_calibration_error(predictive, target),
        "settings": settings,
        "steps": steps + last_steps,
        "last_steps": last_steps,
        "seconds": round(time.perf_counter() - start, 1),
    }


# --- all of it --------------------------------------------------------------------------------------------------


def run(
    out: Path,
    page: Path | None = None,
    *,
    sets: Sequence[str] = SETS,
    methods: Sequence[str] | None = None,
    n_jobs: int = 1,
    budget: Budget | None = None,
    n_splits: int | None = None,
) -> list[Line]:
    """Run what is not in the file yet, in `n_jobs` processes; then write the page. All splits, or the first `n_splits`."""
    rows = _complete(out)
    done = {(row["set"], row["method"]) for row in rows if row["splits"] >= min(n_splits or math.inf, of_splits(row))}
    left = [job for job in jobs(sets, methods) if (job.name, job.method) not in done]
    _check(left)
    for lines in track(_finished(left, budget or Budget(), n_jobs, n_splits), description="methods", total=len(left)):
        fewer = [row for row in rows if (row["set"], row["method"]) == (lines[0]["set"], lines[0]["method"])]
        if fewer:  # of an earlier run, with only some of the splits
            rows = [row for row in rows if row not in fewer]
            write_lines(out, rows)
        rows += [append_line(out, line) for line in lines]
    if page is not None:
        page.write_text(to_markdown(rows))
    return rows


def _complete(out: Path) -> list[Line]:
    """The lines of the file, without those of a job that was stopped while they were written."""
    rows = read_lines(out)
    found = Counter((row["set"], row["method"]) for row in rows)
    complete = [row for row in rows if found[row["set"], row["method"]] == row["splits"]]
    if len(complete) < len(rows):
        write_lines(out, complete)
    return complete


def _check(left: Sequence[MethodRun]) -> None:
    """Methods that need an extra say so when they start: rather now than after the hours of the others."""
    for kind in {METHODS[job.method] for job in left}:
        kind().start(Task((1, 1), ACTIVATION, 1, 1, classification=False), torch.Generator())


def _finished(left: Sequence[MethodRun], budget: Budget, n_jobs: int, n_splits: int | None) -> Iterator[list[Line]]:
    """The lines of each job as soon as it is done, whichever is first."""
    with joblib.parallel_config(backend="loky", inner_max_num_threads=1):
        parallel = joblib.Parallel(n_jobs=n_jobs, return_as="generator_unordered")
        yield from parallel(joblib.delayed(run_job)(job, budget, n_splits) for job in left)
