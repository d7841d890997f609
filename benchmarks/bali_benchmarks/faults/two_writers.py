"""Several writers of one place at once, of whom one may be killed, and a reader: what is there is whole at every moment."""

from __future__ import annotations

import os
import random
import shutil
import signal
import time
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from bali import files
from bali.estimators.estimator_files import KIND as ESTIMATOR
from bali_benchmarks.faults import table_commands as commands
from bali_benchmarks.faults.campaign import FaultError
from bali_benchmarks.faults.killed_saves import EPOCHS, digest, digest_of, means, models, uninterrupted
from bali_benchmarks.faults.killing import Moment, forked
from bali_benchmarks.faults.original_files import fitted_network

KINDS = ("fit --force", "predict", "report", "save", "checkpoint")
_COVERAGES = (0.5, 0.9)

#: What each of the writers does, and what must hold of what they write at any moment.
Scene = tuple[list[Callable[[], object]], Callable[[], object]]


def two_writers(seed: int, folder: Path) -> str:
    """Two or three, at nearly the same time."""
    rng, kind = random.Random(seed), KINDS[seed % len(KINDS)]
    commands.warm()
    commands.older_model()
    scene = {"fit --force": _fits, "predict": _predictions, "report": _reports, "save": _saves, "checkpoint": _trainings}
    writers, whole = scene[kind](rng, folder)
    children = [forked(_late(work, rng.random() * 0.2), folder, Moment()) for work in writers]
    one_dies = rng.random() < 0.3
    dies_at = time.monotonic() + 1.5 * rng.random()
    waiting, bad = set(children), 0
    try:
        while waiting:
            whole()
            if one_dies and children[0] in waiting and time.monotonic() > dies_at:
                os.kill(children[0], signal.SIGKILL)
            for child in list(waiting):
                done, status = os.waitpid(child, os.WNOHANG)
                if done:
                    waiting.remove(child)
                    bad += bool(status) and not (one_dies and child == children[0] and os.WIFSIGNALED(status))
            time.sleep(0.03)
    finally:
        for child in waiting:  # after a fault: none of them outlives the try
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
    whole()
    if bad:
        raise FaultError(f"{kind}: {bad} of {len(children)} writers ended badly")
    if one_dies:
        writers[-1]()  # the next one removes what was left
        whole()
    commands.check_alone(folder, commands.TABLE, commands.MODEL, commands.OUT, "model.bali", "checkpoint", "checkpoint.0")
    return f"{kind}{', one killed' if one_dies else ''}"


def _late(work: Callable[[], object], seconds: float) -> Callable[[], None]:
    def later() -> None:
        time.sleep(seconds)
        work()

    return later


def _done(words: list[object]) -> Callable[[], None]:
    def work() -> None:
        said = commands.command(words)
        if said:
            raise FaultError(said)

    return work


def _with_model(folder: Path) -> Path:
    commands.write_table(folder)
    shutil.copytree(commands.older_model(), folder / commands.MODEL)
    return folder / commands.MODEL


def _fits(rng: random.Random, folder: Path) -> Scene:
    model = _with_model(folder)
    fits: list[Callable[[], object]] = [
        _done(commands.fit(folder, seed, force=True)) for seed in range(2, rng.choice([4, 5]))
    ]

    def whole() -> None:
        before = (model / "metrics.json").read_bytes()
        found = {path.name for path in model.iterdir()}
        files.read(model / "model.bali", ESTIMATOR)  # which is whole, or an error
        was_replaced = (model / "metrics.json").read_bytes() != before  # while we looked
        if found != commands.FILES and not was_replaced:
            raise FaultError(f"a model of {sorted(found)}")

    return fits, whole


def _predictions(rng: random.Random, folder: Path) -> Scene:
    _with_model(folder)
    out = folder / commands.OUT
    out.write_bytes(b"old\n")
    expected = {b"old\n", *(_predicted(coverage) for coverage in _COVERAGES)}

    def whole() -> None:
        if out.read_bytes() not in expected:
            raise FaultError("predictions of two writers in one file")

    return [_done(commands.predict(folder, coverage=coverage)) for coverage in _COVERAGES], whole


@cache
def _predicted(coverage: float) -> bytes:
    folder = commands.older_model().parent
    commands.finished(commands.predict(folder, coverage=coverage))
    return (folder / commands.OUT).read_bytes()


def _reports(rng: random.Random, folder: Path) -> Scene:
    model = _with_model(folder)

    def whole() -> None:
        if not (model / "report.html").read_text().rstrip().endswith("</html>"):
            raise FaultError("half a report")

    return [_done(["report", model])] * 2, whole


def _saves(rng: random.Random, folder: Path) -> Scene:
    path, chosen = folder / "model.bali", rng.sample(models(), 3)
    chosen[0].save(path)
    expected = {digest_of(model) for model in chosen}

    def whole() -> None:
        if digest(path) not in expected:
            raise FaultError("a file of none of the writers")

    def writer(model: Any) -> Callable[[], object]:
        return lambda: [model.save(path) for _ in range(20)]

    return [writer(model) for model in chosen[1:]], whole


def _trainings(rng: random.Random, folder: Path) -> Scene:
    path, expected = folder / "checkpoint", uninterrupted()

    def train() -> None:
        if not np.array_equal(means(fitted_network(EPOCHS, path)), expected):
            raise FaultError("a training beside another ends elsewhere")

    return [train, train], lambda: path.exists() and digest(path)
