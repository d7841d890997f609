"""Train every method on every set, score it, and keep a line of each training that is finished."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from torch import Tensor

from bali.predictive import metrics
from bali.training.calibration import Part, fit_temperature
from bali_benchmarks import datasets
from bali_benchmarks.lenet_study import lenet_page as pages
from bali_benchmarks.lenet_study.lenet import BALI, LEARNING_RATE, METHODS, LenetTask, lenet, lenet_inference, set_rate
from bali_benchmarks.lines import append_line, read_lines
from bali_benchmarks.performance.images import Images
from bali_benchmarks.performance.measurement import Line
from bali_benchmarks.performance.peer_trainings import MissingPeerError, peer
from bali_benchmarks.performance.performance_runs import rounded, thread_count
from bali_benchmarks.performance.timing import interleaved
from bali_benchmarks.performance.trainings import AdamTraining, shuffled_batches

#: Each set, and the one whose test images it is to be told from.
OUTSIDE = {"mnist": "fashion_mnist", "fashion_mnist": "mnist"}
Load = Callable[[str], datasets.Dataset]
OnStep = Callable[[], object]


@dataclass(frozen=True)
class LenetPlan:
    """How long a training is; goes into its line and tells whether it has been run."""

    n_train: int | None = None  # all rows
    n_test: int | None = None
    steps: int = 2340  # twenty epochs
    batch: int = 512
    samples: int = 32
    rounds: int = 20  # of timed steps


QUICK = LenetPlan(n_train=2_000, n_test=500, steps=60, samples=8, rounds=3)


def square_images(name: str, plan: LenetPlan, load: Load = datasets.load) -> tuple[Images, Tensor]:
    """Images (n, 1, size, size) and test images of the other set, standardised by the training part's mean and deviation."""
    inside, outside = (load(own).split(0) for own in (name, OUTSIDE[name]))
    mean, deviation = float(inside.X_train.mean()), float(inside.X_train.std())
    size = round(inside.X_train.shape[1] ** 0.5)

    def pixels(x: Any, n: int | None) -> Tensor:
        return torch.as_tensor(x[:n]).to(torch.float32).sub_(mean).div_(deviation).reshape(-1, 1, size, size)

    def classes(y: Any, n: int | None) -> Tensor:
        return torch.as_tensor(y[:n]).long()

    own = Images(
        pixels(inside.X_train, plan.n_train),
        classes(inside.y_train, plan.n_train),
        pixels(inside.X_test, plan.n_test),
        classes(inside.y_test, plan.n_test),
        name,
    )
    return own, pixels(outside.X_test, plan.n_test)


def measure(images: Images, outside: Tensor, method: str, seed: int, plan: LenetPlan, on_step: OnStep) -> Line:
    """One training from start to scores. Its time has no scoring in it."""
    own = METHODS[method]
    n_held_out = min(own.n_held_out, len(images.x_train) // 10)
    n = len(images.x_train) - n_held_out
    x, y = images.x_train[:n], images.y_train[:n]
    task = LenetTask(images.source, x.shape[-1], n)
    temperature = 1.0
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        start = time.perf_counter()
        training = own.start(task, seed)
        batches = shuffled_batches(x, y, plan.batch, torch.Generator().manual_seed(seed))
        for done in range(plan.steps):
            set_rate(training, done / plan.steps)
            training.step(*next(batches))
            on_step()
        training.finish(x, y)
        if n_held_out:
            predicted = training.predict(images.x_train[n:], plan.samples)
            temperature = fit_temperature([Part(predicted, images.y_train[n:], torch.ones(n_held_out))])
        seconds = time.perf_counter() - start
        start = time.perf_counter()
        inside = training.predict(images.x_test, plan.samples).tempered(temperature)
        predict_seconds = time.perf_counter() - start
        others = training.predict(outside, plan.samples).tempered(temperature)
    return {
        "settings": own.settings,
        "temperature": temperature,
        "seconds": seconds,
        "predict_seconds": predict_seconds,
        "accuracy": metrics.accuracy(inside, images.y_test),
        "nll": -metrics.log_likelihood(inside, images.y_test),
        "ece": metrics.expected_calibration_error(inside, images.y_test),
        "auroc_entropy": metrics.out_of_distribution(inside, others, "entropy").auroc,
        "auroc_mutual_information": metrics.out_of_distribution(inside, others, "mutual_information").auroc,
        "n_train": len(x),
        "n_test": len(images.x_test),
        "n_outside": len(outside),
        "samples": plan.samples,
        "threads": torch.get_num_threads(),
    }


def step_times(batch: int, rounds: int, size: int = 28) -> Line:
    """A step of BALI and one of torch's fused Adam on the same random images, taking turns."""
    generator = torch.Generator().manual_seed(0)
    x, y = torch.randn(batch, 1, size, size, generator=generator), torch.randint(10, (batch,), generator=generator)
    inference, adam = lenet_inference(lenet(size), 60_000), AdamTraining(lenet(size), LEARNING_RATE)
    times = interleaved({"BALI": lambda: inference.step(x, y), "Adam": lambda: adam.step(x, y)}, rounds)
    lower, upper = times.quartiles_of_ratio("BALI", "Adam")
    return {
        "bali_ms": 1e3 * times.median("BALI"),
        "adam_ms": 1e3 * times.median("Adam"),
        "ratio": times.ratio("BALI", "Adam"),
        "lower": lower,
        "upper": upper,
        "threads": torch.get_num_threads(),
    }


def jobs(sets: Sequence[str], methods: Sequence[str], seeds: int, plan: LenetPlan) -> list[dict[str, Any]]:
    """Keys of all trainings, and of the measurement of a step where BALI is among the methods."""
    for given, known, what in ((sets, OUTSIDE, "set"), (methods, METHODS, "method")):
        unknown = [name for name in given if name not in known]
        if unknown:
            raise ValueError(f"there is no {what} {unknown[0]!r}; there are {', '.join(known)}")
    rows = {"rows": plan.n_train or "all", "steps": plan.steps, "batch": plan.batch}
    keys: list[dict[str, Any]] = [
        {"kind": "training", "set": name, "method": method, "seed": seed} | rows
        for name in sets
        for seed in range(seeds)
        for method in methods
    ]
    timing = {"kind": "step", "batch": plan.batch, "rounds": plan.rounds}
    return ([timing] if BALI in methods else []) + keys


def run(
    out: Path,
    page: Path,
    *,
    sets: Sequence[str] | None = None,
    methods: Sequence[str] | None = None,
    seeds: int = 1,
    plan: LenetPlan = LenetPlan(),  # noqa: B008 (frozen)
    threads: int | None = None,
    load: Load = datasets.load,
    note: Callable[[str], object] = lambda line: None,
) -> list[Line]:
    """Run what is not in the file yet and write the page from all its lines. `note` is told what is left out."""
    lines = read_lines(out)
    every = jobs(sets or list(OUTSIDE), methods or list(METHODS), seeds, plan)
    left = [key for key in every if not any(key.items() <= _plain(line).items() for line in lines)]
    if any(key.get("method") == "Laplace KFAC" for key in left):
        try:
            peer("laplace")
        except MissingPeerError as error:
            note(f"Laplace KFAC is left out: {error}")
            left = [key for key in left if key.get("method") != "Laplace KFAC"]
    loaded: dict[str, tuple[Images, Tensor]] = {}
    columns = (
        TextColumn("{task.description}"),
        BarColumn(bar_width=12),
        MofNCompleteColumn(),
        TimeRemainingColumn(compact=True),
    )
    with thread_count(threads), Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        for number, key in enumerate(left, start=1):
            counted = f"{number}/{len(left)}"
            if key["kind"] == "step":
                lines.append(append_line(out, key | rounded(step_times(key["batch"], key["rounds"]))))
                continue
            name, method = key["set"], key["method"]
            if name not in loaded:
                loaded = {name: square_images(name, plan, load)}  # one at a time: they are large
            task = bar.add_task(f"{counted} {name}, {method}, seed {key['seed']}", total=plan.steps)
            line = measure(*loaded[name], method, key["seed"], plan, lambda task=task: bar.advance(task))  # type: ignore[misc]
            bar.remove_task(task)
            lines.append(append_line(out, key | rounded(line)))
    page.parent.mkdir(parents=True, exist_ok=True)
    page.write_text(pages.to_markdown(lines))
    return lines


def _plain(line: Line) -> Line:
    """Entries that can be compared as a set of items."""
    return {key: value for key, value in line.items() if not isinstance(value, dict | list)}
