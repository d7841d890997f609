"""Small trained models with the records that go with them, for the tests of the report."""

from __future__ import annotations

import functools
import warnings
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.exceptions import ConvergenceWarning
from sklearn.metrics import root_mean_squared_error

from bali import BALIClassifier, BALIRegressor
from bali.estimators import BALIEstimator
from bali.predictive import metrics

Array = NDArray[Any]
Case = tuple[BALIEstimator, dict[str, Any]]
N_TRAIN, N_HOLDOUT = 120, 60
QUICK: dict[str, Any] = {
    "max_iter": 60, "n_members": 2, "n_samples": 32, "hidden_layer_sizes": (10,), "random_state": 0,
}  # fmt: skip

#: Text that must not be taken for anything but text.
SCRIPT = "<script>console.error('run')</script>"
MARKUP = "\"'><img src=x onerror=console.error(1)> & {{ 7 * 7 }}"


def inputs(seed: int = 0) -> tuple[Array, np.random.Generator]:
    rng = np.random.default_rng(seed)
    return rng.normal(size=(N_TRAIN + N_HOLDOUT, 3)), rng


def fitted(model: BALIEstimator, X: Array, y: Array) -> BALIEstimator:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        return model.fit(X[:N_TRAIN], y[:N_TRAIN])


def record(task: str, scores: dict[str, float], holdout: dict[str, Any]) -> dict[str, Any]:
    return {
        "target": "price",
        "task": task,
        "source": "houses.csv",
        "features": ["area", "rooms", "age"],
        "notes": ["3 missing values of 'age' were replaced by the median"],
        "n_rows": N_TRAIN + N_HOLDOUT,
        "n_train": N_TRAIN,
        "n_holdout": N_HOLDOUT,
        "seconds": 2.4,
        "bali_version": "0.1.0",
        "metrics": scores,
        "holdout": {"row": list(range(1000, 1000 + N_HOLDOUT))} | holdout,
    }


@functools.cache
def regression() -> Case:
    X, rng = inputs()
    y = 1000.0 * (np.sin(2 * X[:, 0]) + 0.3 * X[:, 1] ** 2 + 0.2 * rng.normal(size=len(X)))
    model = fitted(BALIRegressor(**QUICK), X, y)
    assert isinstance(model, BALIRegressor)
    predictive, held = model.pred_dist(X[N_TRAIN:]), y[N_TRAIN:]
    low, high = predictive.interval(0.9)
    parts = {
        "mean": predictive.mean,
        "std": predictive.std,
        "low": low,
        "high": high,
        "epistemic": predictive.epistemic,
        "aleatoric": predictive.aleatoric,
    }
    columns = {name: part[:, 0].tolist() for name, part in parts.items()}
    scores = {
        "rmse": float(root_mean_squared_error(held, columns["mean"])),
        "mae": float(np.abs(held - columns["mean"]).mean()),
        "log_likelihood": metrics.log_likelihood(predictive, held),
        "coverage_90": metrics.interval_coverage(predictive, held),
    }
    return model, record("regression", scores, {"y": held.tolist()} | columns)


def classification(classes: list[str]) -> Case:
    X, rng = inputs(1)
    noise = rng.normal(size=(len(X), len(classes)))
    y = (X @ rng.normal(size=(3, len(classes))) + 0.3 * noise).argmax(1)
    y[: len(classes)] = np.arange(len(classes))  # every class is in the training part
    model = fitted(BALIClassifier(**QUICK), X, y)
    assert isinstance(model, BALIClassifier)
    predictive, held = model.pred_dist(X[N_TRAIN:]), y[N_TRAIN:]
    scores = {
        "accuracy": metrics.accuracy(predictive, held),
        "log_likelihood": metrics.log_likelihood(predictive, held),
        "ece": metrics.expected_calibration_error(predictive, held),
    }
    columns = {
        "y": held.tolist(),
        "probabilities": predictive.probabilities.tolist(),
        "entropy": predictive.entropy.tolist(),
        "mutual_information": predictive.mutual_information.tolist(),
    }
    return model, record("classification", scores, columns | {"classes": classes})


@functools.cache
def binary() -> Case:
    return classification(["cheap", "dear"])


@functools.cache
def multiclass() -> Case:
    return classification(["low", "middle", "high"])


CASES = {"regression": regression, "binary": binary, "multiclass": multiclass}


def hostile(case: Case) -> Case:
    """The same case with names that try to be something else."""
    model, plain = case
    holdout = dict(plain["holdout"])
    holdout["row"] = [f"{SCRIPT} {number}" for number in holdout["row"]]
    if "classes" in holdout:
        holdout["classes"] = [f"{name} {SCRIPT} {MARKUP}" for name in holdout["classes"]]
    return model, plain | {
        "target": f"{SCRIPT}{MARKUP}",
        "source": f"{SCRIPT}.csv",
        "features": [SCRIPT, MARKUP, "x" * 300],
        "notes": [SCRIPT, MARKUP],
        "bali_version": SCRIPT,
        "metrics": plain["metrics"] | {SCRIPT: 1.25},
        "holdout": holdout,
    }
