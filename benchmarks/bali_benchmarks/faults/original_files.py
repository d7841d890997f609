"""One intact file of each kind that bali writes, small, made once."""

from __future__ import annotations

import atexit
import shutil
import statistics
import tempfile
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import nn

import bali
from bali import files
from bali.estimators.estimator_files import KIND as ESTIMATOR
from bali.estimators.input_scaling import OutOfReachError
from bali.tables.errors import TableError
from bali.tables.table_model import load_table_model
from bali.training.fit_checkpoints import KIND as CHECKPOINT
from bali.training.fitted import Fitted
from bali.training.fitted_values import KIND as FITTED
from bali_benchmarks.faults.forks import Helper, most_resident, resident

_X = np.random.default_rng(0).normal(size=(60, 3))
_Y = np.sin(_X[:, 0]) + 0.1 * _X[:, 1]
_NEW = _X[:7] * 0.9
_EPOCHS = 2  # of a checkpoint


@dataclass(frozen=True)
class Original:
    name: str
    path: Path
    kind: str  # of its header
    predictions: Any  # numbers, in lists
    bytes_to_load: float

    def content(self) -> tuple[dict[str, Any], dict[str, torch.Tensor]]:
        return files.read(self.path, self.kind)


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 8), nn.BatchNorm1d(8), nn.Tanh(), nn.Linear(8, 1))


def inference() -> bali.LayerwiseInference:
    generator = torch.Generator().manual_seed(0)
    likelihood = bali.likelihoods.Gaussian()
    return bali.LayerwiseInference(network(), likelihood, len(_X), optimizer=_adam, generator=generator)


def _adam(parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.Adam(parameters, lr=1e-3)


def _tensors() -> tuple[torch.Tensor, torch.Tensor]:
    return torch.from_numpy(_X).float(), torch.from_numpy(_Y).float()[:, None]


def _write_regressor(path: Path) -> None:
    bali.BALIRegressor((6, 6), max_iter=4, n_members=2, n_samples=16, random_state=0).fit(_X, _Y).save(path)


def _write_classifier(path: Path) -> None:
    labels = np.array(["low", "high"])[(_Y > 0).astype(int)]
    bali.BALIClassifier((6,), max_iter=4, n_members=2, n_samples=16, random_state=0).fit(_X, labels).save(path)


def _write_table(path: Path) -> None:
    from bali.cli.app import app

    table = path.parent / "t.csv"
    _frame().to_csv(table, index=False)
    command = ["fit", table, "--target", "y", "--max-iter", 2, "--members", 1, "--seed", 1, "--out", path, "--quiet"]
    app([str(word) for word in command], standalone_mode=False)


def _frame() -> pd.DataFrame:
    words = np.array(["Ulm", "Köln"])[(_X[:, 2] > 0).astype(int)]
    return pd.DataFrame({"x": _X[:, 0], "z": _X[:, 1], "town": words, "y": _Y})


def _write_state(path: Path) -> None:
    run, (x, y) = inference(), _tensors()
    for _ in range(3):
        run.step(x, y)
    run.save(path)


def _write_checkpoint(path: Path) -> None:
    fitted_network(_EPOCHS, path)


def _write_network(path: Path) -> None:
    fitted_network(2, members=2).save(path)


def fitted_network(epochs: int, checkpoint: Path | None = None, members: int = 1) -> Fitted:
    options: dict[str, Any] = {"epochs": epochs, "seed": 0, "verbose": False, "checkpoint": checkpoint}
    return bali.fit(network(), _tensors(), bali.likelihoods.Gaussian(), members=members, **options)


@cache
def _prepared() -> bali.LayerwiseInference:
    return inference()  # each try has a copy of it: it is in a fork


def _load_state(path: Path) -> bali.LayerwiseInference:
    _prepared().load(path)
    return _prepared()


def _numbers(predictive: Any) -> Any:
    return torch.stack([predictive.mean.flatten(), predictive.std.flatten()]).double().numpy()


#: How each is written, and as what it is read.
ORIGINALS: dict[str, tuple[Callable[[Path], None], str, Callable[[Path], Any], Callable[[Any], Any]]] = {
    "regressor": (_write_regressor, ESTIMATOR, bali.load, lambda m: np.stack(m.predict(_NEW, return_std=True))),
    "classifier": (_write_classifier, ESTIMATOR, bali.load, lambda m: m.predict_proba(_NEW)),
    "table": (_write_table, ESTIMATOR, load_table_model, lambda m: _numbers(m.predictive(_frame()[:7]))),
    "state": (_write_state, "inference state", _load_state, lambda m: _numbers(m.predict(_tensors()[0][:7], 16))),
    "network": (
        _write_network,
        FITTED,
        lambda path: bali.load(path, module=network()),
        lambda m: _numbers(m.predict(_tensors()[0][:7], 16)),
    ),
    "checkpoint": (  # of a training that is over: to go on from it is to load it, and to calibrate
        _write_checkpoint,
        CHECKPOINT,
        lambda path: fitted_network(_EPOCHS, path),
        lambda m: _numbers(m.predict(_tensors()[0][:7], 16)),
    ),
}


@cache
def original(name: str) -> Original:
    folder = Path(tempfile.mkdtemp())
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    write, kind, load, predict = ORIGINALS[name]
    path = folder / f"{name}.bali"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        write(path)
    path = path / "model.bali" if path.is_dir() else path
    expected = predict(load(path))
    with Helper(lambda _: loaded(name, path)) as in_fork:
        n_bytes = statistics.median([in_fork(None)["bytes"] for _ in range(6)][1:])  # at first it loads libraries, too
    return Original(name, path, kind, expected.tolist(), n_bytes)


def loaded(name: str, path: Path) -> dict[str, Any]:
    """What loading a file as one of this kind takes, and what it gives."""
    _, _, load, predict = ORIGINALS[name]
    before, started = resident(), time.process_time()
    told: dict[str, Any] = {}
    try:
        model = load(path)
    except Exception as error:
        model, told["error"] = None, [type(error).__name__, str(error)]
    told |= {"seconds": time.process_time() - started, "bytes": most_resident() - before}
    if model is not None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                told["predictions"] = predict(model).tolist()
            except (OutOfReachError, TableError):
                told["out_of_reach"] = True
    return told
