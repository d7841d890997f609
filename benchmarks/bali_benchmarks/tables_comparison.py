"""Default estimators on scikit-learn's bundled tables and on made ones, beside what a user would otherwise reach for.

Bundled tables have five-fold cross-validation, made ones several draws, the same for all methods. Every finished fold or
draw is appended to a JSON-lines file, and a run that was interrupted goes on where it stopped.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from rich.progress import track
from sklearn import datasets
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression, RidgeCV
from sklearn.model_selection import KFold, StratifiedKFold
from sklearn.neural_network import MLPClassifier, MLPRegressor
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import bali
from bali.predictive import metrics
from bali.predictive.mixtures import ClassPredictive, Predictive, RegressionPredictive
from bali_benchmarks.baselines import BaselineClassifier, BaselineRegressor
from bali_benchmarks.lines import append_line, read_lines
from bali_benchmarks.made_tables import MADE, N_TEST

Array = NDArray[Any]
Fitted = Callable[[Array], Predictive]

SETS: dict[str, Callable[..., tuple[Array, Array]]] = {
    "diabetes": datasets.load_diabetes,
    "breast_cancer": datasets.load_breast_cancer,
    "digits": datasets.load_digits,
    "wine": datasets.load_wine,
}
METHODS = ("BALI", "MLP", "MC dropout")
MADE_METHODS, N_DRAWS = ("BALI", "linear", "MLP"), 3


@dataclass(frozen=True)
class TableTask:
    name: str
    method: str
    fold: int  # or draw

    @property
    def classification(self) -> bool:
        return MADE[self.name].classification if self.name in MADE else self.name != "diabetes"

    def split(self) -> tuple[Array, Array, Array, Array]:
        """Training rows and targets, test rows and targets."""
        if self.name in MADE:
            return MADE[self.name].draw(self.fold)
        X, y = SETS[self.name](return_X_y=True)
        folds = (StratifiedKFold if self.classification else KFold)(5, shuffle=True, random_state=0)
        train, test = list(folds.split(X, y))[self.fold]
        return X[train], y[train], X[test], y[test]


def tasks(sets: Collection[str] = ()) -> list[TableTask]:
    """Those of these sets, or all."""
    unknown = [name for name in sets if name not in (*SETS, *MADE)]
    if unknown:
        raise ValueError(f"there is no set {unknown[0]!r}; there are {', '.join((*SETS, *MADE))}")
    found: list[TableTask] = []
    for names, n_folds, methods in ((SETS, 5, METHODS), (MADE, N_DRAWS, MADE_METHODS)):
        own = [name for name in names if not sets or name in sets]
        found += [TableTask(name, method, fold) for fold in range(n_folds) for name in own for method in methods]
    return found


def fit(task: TableTask, X: Array, y: Array) -> Fitted:
    """The method's defaults; others than BALI get standardised inputs and, for regression, a fitted Gaussian noise.

    The noise of the perceptron is that of its training rows, ridge regression has leave-one-out errors.
    """
    if task.method == "BALI":
        kind = bali.BALIClassifier if task.classification else bali.BALIRegressor
        return kind(random_state=task.fold).fit(X, y).pred_dist
    if task.method == "MC dropout":
        baseline = BaselineClassifier if task.classification else BaselineRegressor
        return baseline("mc_dropout", random_state=task.fold).fit(X, y).pred_dist
    is_linear = task.method == "linear"
    if task.classification:
        model = LogisticRegression(max_iter=2000) if is_linear else MLPClassifier(random_state=task.fold, max_iter=2000)
        classifier = make_pipeline(StandardScaler(), model).fit(X, y)
        return lambda Z: ClassPredictive(torch.as_tensor(classifier.predict_proba(Z))[None])
    ridge = RidgeCV(np.logspace(-3.0, 3.0, 13), store_cv_results=True)
    regressor = make_pipeline(StandardScaler(), ridge if is_linear else MLPRegressor(random_state=task.fold, max_iter=2000))
    regressor.fit(X, y)
    variance = ridge.cv_results_.mean(0).min() if is_linear else np.var(y - regressor.predict(X))
    noise = torch.full((1, 1, 1), float(variance)).double()
    return lambda Z: RegressionPredictive(torch.as_tensor(regressor.predict(Z))[None, :, None], noise)


def run_task(task: TableTask) -> dict[str, Any]:
    X_train, y_train, X_test, y_test = task.split()
    start = time.perf_counter()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        predict = fit(task, X_train, y_train)
        predictive = predict(X_test)
    seconds = time.perf_counter() - start
    target = torch.as_tensor(y_test)
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


def run(out: Path, page: Path | None = None, sets: Collection[str] = ()) -> list[dict[str, Any]]:
    """Run what is not in the file yet, of these sets or of all; then write the page."""
    rows = read_lines(out)
    done = {(row["set"], row["method"], row["fold"]) for row in rows}
    left = [task for task in tasks(sets) if (task.name, task.method, task.fold) not in done]
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
        "`BALI` is `BALIRegressor()` or `BALIClassifier()` with nothing set. Perceptrons that see the columns as they are,",
        "others that see them in bins, as waves, or beside what near rows say are trained side by side. Rows that some of",
        "them hold out tell which are kept and mixed; of a regression whether every row has a noise of its own, and how",
        "heavy its tails are; of classes how wide the posterior is, and how sure probabilities may be.",
        "[Defaults](defaults.md) has the rules, decisions [19](decisions/0019-tables-by-the-joint-update.md) and",
        "[31](decisions/0031-near-rows.md) the reasons. What has a dash was not run yet with the present defaults.",
        "",
        "scikit-learn's bundled data, five folds, the same for all methods, nothing tuned per set. `MLP` is scikit-learn's",
        "`MLPRegressor` / `MLPClassifier` on standardised inputs, with the training residuals' variance as the noise of a",
        "regression; `MC dropout` has one hidden layer of 50 units and chooses its rate and noise on validation rows.",
        "Mean ± standard error over folds. Written by `bali-benchmarks tables`.",
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
    return "\n".join([*lines, *_made_section(rows)]) + "\n"


def _made_section(rows: list[dict[str, Any]]) -> list[str]:
    """Log-likelihoods only: what the other figures are worth differs from table to table."""
    lines = [
        "",
        "## Tables that the defaults were not set on",
        "",
        f"Drawn from laws of very different kinds, {N_TEST:,} fresh rows each for the test; log-likelihood, mean ±",
        f"standard error over up to {N_DRAWS} draws. `linear` is ridge regression with its penalty and noise by",
        "leave-one-out errors, or logistic regression. The last column is BALI's minus that of the better one of the",
        "others, paired by draws.",
        "",
        "| table | rows | columns | draws | BALI | linear | MLP | BALI − best other |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for name, made in MADE.items():
        found = {
            method: {row["fold"]: row["log_likelihood"] for row in rows if (row["set"], row["method"]) == (name, method)}
            for method in MADE_METHODS
        }
        draws = sorted(set.intersection(*(set(own) for own in found.values())))
        values = {method: np.array([own[draw] for draw in draws]) for method, own in found.items()}
        best = max(MADE_METHODS[1:], key=lambda method: values[method].mean() if draws else 0.0)
        cells = [*(_with_error(values[method]) for method in MADE_METHODS), _with_error(values["BALI"] - values[best])]
        lines.append(f"| {made.what} | {made.n_rows:,} | {made.n_columns} | {len(draws)} | {' | '.join(cells)} |")
    return lines


def _mean(rows: list[dict[str, Any]], key: str) -> str:
    return _with_error(np.array([row[key] for row in rows]))


def _with_error(values: Array) -> str:
    if len(values) < 2:
        return f"{values[0]:.3f}" if len(values) else "–"
    return f"{values.mean():.3f} ± {values.std(ddof=1) / len(values) ** 0.5:.3f}"
