"""Scores of a table's predictions, gathered piece by piece: of each row only what the scores need is kept."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.metrics import mean_absolute_error, r2_score, root_mean_squared_error

from bali.predictive import metrics
from bali.predictive.mixtures import ClassPredictive, Predictive, RegressionPredictive
from bali.tables.errors import quoted
from bali.tables.target_column import Target

#: Nominal coverage of the intervals that are checked.
COVERAGE = 0.9

MEANINGS = {
    "rmse": "root mean squared error, in the units of the target",
    "mae": "mean absolute error, in the units of the target",
    "r2": "share of the variance that is explained",
    "log_likelihood": "mean log density or probability of what was observed; higher is better",
    "coverage_90": "share of rows inside their 90 % interval; best near 0.9",
    "accuracy": "share of rows whose most probable class was right",
    "ece": "expected calibration error: gap between confidence and accuracy; best near 0",
    "auc": "area under the ROC curve; 1 is best, 0.5 is chance",
    "brier": "squared distance between probabilities and outcome (0 to 2); lower is better",
}


class Scores:
    """Metrics of predictions and observed values, which may come in pieces."""

    def __init__(self, target: Target) -> None:
        self._target = target
        self._observed: list[NDArray[np.float64]] = []
        self._predicted: list[NDArray[np.float64]] = []  # means, or class probabilities
        self._log_prob: list[NDArray[np.float64]] = []
        self._inside: list[NDArray[np.bool_]] = []
        self.n_rows = 0

    def add(self, predictive: Predictive, y: NDArray[np.float64]) -> None:
        """`y` are numbers, or numbers of classes."""
        observed = torch.tensor(y)
        self.n_rows += len(y)
        self._observed.append(y)
        self._log_prob.append(predictive.log_prob(observed).double().cpu().numpy())
        if isinstance(predictive, RegressionPredictive):
            low, high = (end[:, 0].double().cpu().numpy() for end in predictive.interval(COVERAGE))
            self._predicted.append(predictive.mean[:, 0].double().cpu().numpy())
            self._inside.append((low <= y) & (y <= high))
        elif isinstance(predictive, ClassPredictive):
            self._predicted.append(predictive.probabilities.double().cpu().numpy())

    def metrics(self) -> dict[str, float]:
        """Name → number. A score that these rows do not define is left out; `notes` says which."""
        y, predicted = np.concatenate(self._observed), np.concatenate(self._predicted)
        log_likelihood = {"log_likelihood": float(np.concatenate(self._log_prob).mean())}
        if self._target.task == "regression":
            errors = {"rmse": float(root_mean_squared_error(y, predicted)), "mae": float(mean_absolute_error(y, predicted))}
            r2 = {"r2": float(r2_score(y, predicted))} if np.ptp(y) > 0 else {}
            return errors | r2 | log_likelihood | {"coverage_90": float(np.concatenate(self._inside).mean())}
        mixture = ClassPredictive(torch.as_tensor(predicted)[None])  # its mean is all that these scores use
        scores = {"accuracy": metrics.accuracy(mixture, y)} | log_likelihood
        scores["ece"] = metrics.expected_calibration_error(mixture, y)
        if not self._absent():
            scores["auc"] = metrics.auc(mixture, y)
        return scores | {"brier": metrics.brier(mixture, y)}

    def _absent(self) -> list[str]:
        """Classes without a row."""
        seen = np.unique(np.concatenate(self._observed))
        return [label for i, label in enumerate(self._target.classes) if i not in seen]

    def notes(self) -> list[str]:
        absent = self._absent()
        return [f"no AUC: none of the scored rows is of class {quoted(absent)}"] if absent else []
