"""Writes small models of this version, and what they predict, to tests/fixtures/VERSION: later versions must read them.

A version is written once. Run with src and tests on the path: python tests/support/write_fixtures.py
"""

from __future__ import annotations

import json
import shutil
import sys
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

import bali
from bali.cli.results import REPORT_FILE, write_results
from bali.predictive.mixtures import ClassPredictive
from bali.tables.opening import open_table
from bali.tables.table_model import load_table_model
from bali.tables.table_training import FitOptions, fit_table, read_training_table
from support.houses import houses, write_houses

FIXTURES = Path(__file__).parents[1] / "fixtures"
TINY: dict[str, Any] = {
    "hidden_layer_sizes": (4,), "n_members": 2, "n_bins": 3, "max_iter": 30, "n_samples": 8, "random_state": 0,
}  # fmt: skip


def rows() -> np.ndarray[Any, Any]:
    return np.random.default_rng(0).normal(size=(30, 3))


def frame() -> pd.DataFrame:
    return houses(40, seed=1)


def predictions(path: Path) -> dict[str, list[Any]]:
    """What a fixture says about a few rows."""
    if path.is_dir():
        predictive = load_table_model(path).predictive(frame().head(6))
        assert isinstance(predictive, ClassPredictive)
        return {"probabilities": predictive.probabilities.tolist()}
    model = bali.load(path)
    X = rows()[:6]
    if isinstance(model, bali.BALIClassifier):
        return {"predict": model.predict(X).tolist(), "probabilities": model.predict_proba(X).tolist()}
    assert isinstance(model, bali.BALIRegressor)
    mean, std = model.predict(X, return_std=True)
    return {"mean": mean.tolist(), "std": std.tolist(), "quantiles": model.predict_quantiles(X).tolist()}


def write(folder: Path) -> None:
    folder.mkdir(parents=True)
    X = rows()
    y = X[:, 0] ** 2 + X[:, 1]
    tried = TINY | {"n_bins": None}  # both encodings, of which one or two are kept
    bali.BALIRegressor(**tried).fit(X, y).save(folder / "regressor.bali")
    bali.BALIRegressor(**TINY).fit(X, np.stack([y, -X[:, 2]], 1)).save(folder / "two-outputs.bali")
    labels = np.array(["low", "middle", "high"])[np.digitize(y, [0, 1])]
    bali.BALIClassifier(**TINY).fit(X, labels).save(folder / "classifier.bali")
    bali.BALIRegressor(**TINY).partial_fit(X, y).save(folder / "stream.bali")
    rng = np.random.default_rng(1)
    counts = rng.poisson(np.exp(0.5 + X[:, 0]))
    bali.BALIRegressor(**TINY, likelihood="counts").fit(X, counts).save(folder / "counts.bali")
    times = np.column_stack([rng.weibull(1.5, 30) * np.exp(X[:, 0]), rng.random(30) < 0.7])
    bali.BALIRegressor(**TINY, likelihood="durations").fit(X, times).save(folder / "durations.bali")
    many = rng.normal(size=(400, 3))
    loud = many[:, 0] + np.exp(many[:, 1] - 2) * rng.normal(size=400)
    by_row = bali.BALIRegressor(**TINY, validation_fraction=0.4).fit(many, loud)
    assert by_row.posterior_.row_noise is not None
    by_row.save(folder / "row-noise.bali")
    write_near_rows_and_logarithms(folder)
    write_waves(folder)
    write_heaps(folder)
    write_noise_by_near_rows(folder)
    # As `bali fit` does it, but with smaller networks, which it has no option for.
    table = write_houses(folder, 40)
    options = FitOptions("dear", id="house", drop=("price",), estimator=TINY)
    model = fit_table(read_training_table(open_table(table), options), options, lambda _progress: None)
    write_results(folder / "table", model, force=False)
    table.unlink()
    (folder / "table" / REPORT_FILE).unlink()  # long, and no part of the model
    write_predictions(folder)


def write_near_rows_and_logarithms(folder: Path) -> None:
    """What models can hold since 0.2.0; the files in `0.2-near-rows-and-logarithms` are of this alone."""
    X = rows()
    near = bali.BALIRegressor(**TINY | {"n_bins": None}, near_rows=True).fit(X, np.sign(X[:, 0]) + X[:, 1])
    near.save(folder / "near-rows.bali")
    logs = bali.BALIRegressor(**TINY, validation_fraction=0.4).fit(X, np.exp(2.0 * X[:, 0]))
    assert logs.logarithms_ is not None
    logs.save(folder / "logarithms.bali")


def write_waves(folder: Path) -> None:
    """Likewise, in `0.2-waves`."""
    X = np.random.default_rng(2).uniform(-2.0, 2.0, size=(400, 3))
    waves = bali.BALIRegressor(**TINY | {"n_bins": None, "max_iter": 200}).fit(X, np.sin(1.5 * X[:, 0]))
    assert any(encoding.n_waves for encoding in waves.encodings_)
    waves.save(folder / "waves.bali")


def write_heaps(folder: Path) -> None:
    """Likewise, in `0.2-heaps`: factors of single counts, and rows that counted by their precision."""
    rng = np.random.default_rng(4)
    X = rng.normal(size=(800, 3))
    y = rng.poisson(np.exp(1.5 + 0.4 * X[:, 0]))
    heaped = np.where(y % 5 > 2, y // 5 * 5 + 5, y)
    counts = bali.BALIRegressor(**TINY, likelihood="poisson", validation_fraction=0.3).fit(X, heaped)
    assert counts.posterior_.heaps
    counts.save(folder / "heaps.bali")
    loud = np.sin(2 * X[:, 0]) + 0.1 * np.exp(1.5 * X[:, 1]) * rng.normal(size=800)
    precise = bali.BALIRegressor(**TINY, validation_fraction=0.4).fit(X, loud)
    assert precise.posterior_.by_precision
    precise.save(folder / "by-precision.bali")


def write_noise_by_near_rows(folder: Path) -> None:
    """Likewise, in `0.2-noise-by-near-rows`."""
    rng = np.random.default_rng(3)
    X = rng.normal(size=(300, 3))
    y = X[:, 0] + np.exp(X[:, 1] - 2) * rng.normal(size=300)
    model = bali.BALIRegressor(**TINY, near_rows=True, validation_fraction=0.4).fit(X, y)
    assert model.posterior_.row_noise is not None
    assert model.posterior_.row_noise.sees == len(model.posterior_.stacks)
    model.save(folder / "noise-by-near-rows.bali")


def write_predictions(folder: Path) -> None:
    found = {path.name: predictions(path) for path in sorted(folder.iterdir())}
    (folder / "predictions.json").write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    folder = FIXTURES / ".".join(bali.__version__.split(".")[:2])
    if folder.exists():
        sys.exit(f"{folder} exists: the files of a version are not written again")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            write(folder)
        except BaseException:
            shutil.rmtree(folder, ignore_errors=True)
            raise
