"""`save` and the checkpoints of `bali.fit`, killed: the old or the new file, whole, and nothing else after the next."""

from __future__ import annotations

import json
import random
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

import bali
from bali import files
from bali.training.fit_checkpoints import KIND
from bali_benchmarks.faults import table_commands as commands
from bali_benchmarks.faults.campaign import FaultError
from bali_benchmarks.faults.killing import Moment, killed
from bali_benchmarks.faults.original_files import fitted_network, inference, original

EPOCHS = 40


def killed_save(seed: int, folder: Path) -> str:
    """A file of one model is to be replaced by one of another."""
    rng = random.Random(seed)
    path, (old, new) = folder / "model.bali", rng.sample(models(), 2)
    old.save(path)
    digests = [digest(path), digest_of(new)]
    moment = Moment.drawn(rng, 12, 0.03, 2 * path.stat().st_size)
    was_killed = killed(lambda: new.save(path), folder, moment)
    if digest(path) not in digests:
        raise FaultError(f"save, {moment}: the file is neither the old nor the new one")
    new.save(path)
    commands.check_alone(folder, path.name)
    if digest(path) != digests[1]:
        raise FaultError("save: another file than before")
    return f"save {'killed' if was_killed else 'done before'}"


def killed_checkpoint(seed: int, folder: Path) -> str:
    """A training with a checkpoint, killed up to three times, ends as one that was not."""
    rng = random.Random(seed)
    path, was_killed = folder / "checkpoint", False
    for _ in range(rng.randint(1, 3)):
        moment = Moment.drawn(rng, 60, 1.0, 12_000)
        was_killed |= killed(lambda: fitted_network(EPOCHS, path), folder, moment)
        if path.exists():
            files.read(path, KIND)  # which is whole, or an error
    found = means(fitted_network(EPOCHS, path))
    commands.check_alone(folder, path.name, f"{path.name}.0")  # a finished member has its own file
    if not np.array_equal(found, uninterrupted()):
        raise FaultError("checkpoint: a resumed training ends elsewhere")
    return f"checkpoint {'killed' if was_killed else 'done before'}"


@cache
def models() -> list[Any]:
    run = inference()
    run.load(original("state").path)
    models = [bali.load(original(name).path) for name in ("regressor", "classifier")]
    return [*models, run, fitted_network(2)]


def digest_of(model: Any) -> str:
    with tempfile.TemporaryDirectory() as folder:
        model.save(Path(folder) / "m")
        return digest(Path(folder) / "m")


def digest(path: Path) -> str:
    """Of a file that is whole; the order of its header's fields is any. Others may replace it while it is read."""
    content = path.read_bytes()
    header = json.loads(content[8 : 8 + int.from_bytes(content[:8], "little")])["__metadata__"]
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / path.name
        copy.write_bytes(content)
        files.read(copy, header["kind"])
    return str(header["digest"])


def means(fitted: Any) -> Any:
    return np.concatenate([p.mean.numpy().ravel() for p in fitted.posteriors.values()])


@cache
def uninterrupted() -> Any:
    return means(fitted_network(EPOCHS))
