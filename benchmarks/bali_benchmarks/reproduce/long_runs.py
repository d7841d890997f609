"""Runs of hours: checks on the way, a curve to be read meanwhile, and a file to go on from after a kill.

Two files stand in the folder of unfinished runs as long as a run is not finished: `NAME.run`, written every few minutes,
and `NAME.curve.json`, written at every check. A run that goes on from the first is the uninterrupted one to the last bit,
but for its seconds.
"""

from __future__ import annotations

import json
import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from torch import Tensor

import bali
from bali import files
from bali_benchmarks.reproduce.courses import Course

#: A kill costs at most these seconds of work, and a file of 30 MB takes a few tenths of one.
SAVE_SECONDS = 300.0
KIND = "unfinished run"


class Watch(Protocol):
    """What is noted at the checks of a run."""

    def note(self, course: Course, seconds: float) -> None: ...

    def noted(self) -> list[dict[str, list[float]]]:
        """As plain numbers, to be kept."""

    def go_on(self, noted: list[dict[str, list[float]]]) -> None: ...


@dataclass(frozen=True)
class Unfinished:
    """Where a run is kept until it is finished, and what makes it that run and no other."""

    path: Path
    settings: Mapping[str, Any]  # as JSON has them; a file of other settings is not gone on with

    @property
    def curve(self) -> Path:
        return self.path.with_suffix(".curve.json")

    def read(self) -> tuple[dict[str, Any], dict[str, Tensor]] | None:
        """What was kept of this run, if anything; a damaged file is an error that names it."""
        if not self.path.exists():
            return None
        meta, tensors = files.read(self.path, KIND)
        return (meta, tensors) if meta["settings"] == self._settings() else None

    def write(self, course: Course, times: Mapping[str, float], watch: Watch) -> None:
        meta, tensors = course.keep()
        self.path.parent.mkdir(parents=True, exist_ok=True)
        whole = {"settings": self._settings(), "course": meta, "noted": watch.noted()} | dict(times)
        files.write(self.path, KIND, whole, tensors)

    def write_curve(self, course: Course, watch: Watch) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with files.replacing(self.curve) as file:
            file.write(json.dumps({"step": course.step, "settings": self._settings(), "curves": watch.noted()}).encode())

    def remove(self) -> None:
        """When its lines are written."""
        for path in (self.path, self.curve):
            path.unlink(missing_ok=True)

    def _settings(self) -> Any:
        return json.loads(json.dumps(dict(self.settings) | {"version": bali.__version__}))


def train(
    course: Course, n_steps: int, watch: Watch, checks: Collection[int] = (), unfinished: Unfinished | None = None
) -> float:
    """The course until it has taken `n_steps`, from where it was left if it was. Returns the seconds of all parts of it,
    of the processor, which other work on the machine does not lengthen."""
    training = spent = 0.0  # seconds: of steps, and of steps and checks
    found = None if unfinished is None else unfinished.read()
    if found is not None:
        meta, tensors = found
        course.go_on(meta["course"], tensors)
        watch.go_on(meta["noted"])
        training, spent = meta["training"], meta["spent"]
    kept_at, since = time.monotonic(), time.process_time()
    begun = since
    while course.step < n_steps:
        course.advance()
        if course.step in checks:
            training += time.process_time() - since
            watch.note(course, training)
            if unfinished is not None:
                unfinished.write_curve(course, watch)
            since = time.process_time()
        if unfinished is not None and time.monotonic() - kept_at >= SAVE_SECONDS:
            now = time.process_time()
            times = {"training": training + now - since, "spent": spent + now - begun}
            unfinished.write(course, times, watch)
            kept_at, training, since = time.monotonic(), times["training"], time.process_time()
    return spent + time.process_time() - begun


class NoWatch:
    """Of runs without checks."""

    def note(self, course: Course, seconds: float) -> None:
        raise AssertionError("a run without checks has nothing to note")

    def noted(self) -> list[dict[str, list[float]]]:
        return []

    def go_on(self, noted: list[dict[str, list[float]]]) -> None:
        return None
