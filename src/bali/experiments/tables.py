"""Default estimators on scikit-learn's bundled tables, beside what a user would otherwise reach for.

Five-fold cross-validation, the same folds for all methods; every finished fold is appended to a JSON-lines file, and a run
that was interrupted goes on where it stopped.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from rich.progress import track
from sklearn import datasets
from sklearn.exceptions import ConvergenceWarning
from sklearn.model_selection import KFold, StratifiedKFold
from sklearn.neural_network import MLPClassifier, MLPRegressor
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import bali
from bali import metrics
from bali.baselines import BaselineClassifier, BaselineRegressor
from bali.experiments.lines import append_line, read_lines
from bali.predictive import ClassPredictive, Predictive, RegressionPredictive

Array = NDArray[Any]
Fitted = Callable[[Array], Predictive]

SETS: dict[str, Callable[..., tuple[Array, Array]]] = {
    "diabetes": datasets.load_diabetes,
    "breast_cancer": datasets.load_breast_cancer,
    "digits": datasets.load_digits,
    "wine": datasets.load_wine,
}
METHODS = ("BALI", "MLP", "MC dropout")


@dataclass(frozen=True)
class Task:
    name: str
    method: str
    fold: int

    @property
    def classification(self) -> bool:
        return self.name != "diabetes"


def tasks() -> Iterator[Task]:
    for name in SETS:
        for fold in range(5):
            for method in METHODS:
                yield Task(name, method, fold)


def fit(task: Task, X: Array, y: Array) -> Fitted:
    """The method's defaults; the perceptron gets standardised inputs and, for regression, a fitted Gaussian noise."""
    if task.method == "BALI":
        kind = bali.BALIClassifier if task.classification else bali.BALIRegressor
        return kind(random_state=task.fold).fit(X, y).pred_dist
    if task.method == "MC dropout":
        baseline = BaselineClassifier if task.classification else BaselineRegressor
        return baseline("mc_dropout", random_state=task.fold).fit(X, y).pred_dist
    if task.classification:
        classifier = make_pipeline(StandardScaler(), MLPClassifier(random_state=task.fold, max_iter=2000)).fit(X, y)
        return lambda Z: ClassPredictive(torch.as_tensor(classifier.predict_proba(Z))[None])
    regressor = make_pipeline(StandardScaler(), MLPRegressor(random_state=task.fold, max_iter=2000)).fit(X, y)
    noise = torch.full((1, 1, 1), float(np.var(y - regressor.predict(X))))
    return lambda Z: RegressionPredictive(torch.as_tensor(regressor.predict(Z))[None, :, None], noise.double())


def run_task(task: Task) -> dict[str, Any]:
    X, y = SETS[task.name](return_X_y=True)
    folds = (StratifiedKFold if task.classification else KFold)(5, shuffle=True, random_state=0)
    train, test = list(folds.split(X, y))[task.fold]
    start = time.perf_counter()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        predict = fit(task, X[train], y[train])
        predictive = predict(X[test])
    seconds = time.perf_counter() - start
    target = torch.as_tensor(y[test])
    row: dict[str, Any] = {"set": task.name, "method": task.method, "fold": task.fold, "seconds": round(seconds, 2)}
    row["log_likelihood"] = metrics.log_likelihood(predictive, target)
    if isinstance(predictive, RegressionPredictive):
        row["rmse"] = metrics.rmse(predictive, target)
        row["coverage_90"] = metrics.interval_coverage(predictive, target, 0.9)
    else:
        assert isinstance(predictive, ClassPredictive)
        row["accuracy"] = metrics.accuracy(predictive, target)
        row["ece"] = metrics.expected_calibration_error(predictive, target)
    return row


def run(out: Path, page: Path | None = None) -> list[dict[str, Any]]:
    """Run what is not in the file yet; then write the page."""
    rows = read_lines(out)
    done = {(row["set"], row["method"], row["fold"]) for row in rows}
    left = [task for task in tasks() if (task.name, task.method, task.fold) not in done]
    for task in track(left, description="tables"):
        rows.append(append_line(out, run_task(task)))
    if page is not None:
        page.write_text(to_markdown(rows))
    return rows


def to_markdown(rows: list[dict[str, Any]]) -> str:
    """The page with the table, means over the folds with standard errors."""
    lines = [
        "# Defaults on tables",
        "",
        "scikit-learn's bundled data, five folds, the same for all methods, nothing tuned per set. `MLP` is scikit-learn's",
        "`MLPRegressor` / `MLPClassifier` on standardised inputs, with the training residuals' variance as the noise of a",
        "regression; `MC dropout` has one hidden layer of 50 units and chooses its rate and noise on validation rows.",
        "Mean ± standard error over folds. Written by `bali bench tables`.",
        "",
        "| set | method | log-likelihood | RMSE or accuracy | coverage of 90 % intervals or ECE | seconds |",
        "|---|---|---|---|---|---|",
    ]
    for name in SETS:
        for method in METHODS:
            own = [row for row in rows if row["set"] == name and row["method"] == method]
            keys = ("rmse", "coverage_90") if name == "diabetes" else ("accuracy", "ece")
            cells = [_mean(own, key) for key in ("log_likelihood", *keys, "seconds")]
            lines.append(f"| {name} | {method} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def _mean(rows: list[dict[str, Any]], key: str) -> str:
    values = np.array([row[key] for row in rows])
    if len(values) < 2:
        return "–"
    return f"{values.mean():.3f} ± {values.std(ddof=1) / len(values) ** 0.5:.3f}"
