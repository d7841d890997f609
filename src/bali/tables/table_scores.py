"""Scores of a table's predictions, gathered piece by piece: of each row only what the scores need is kept."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import stats
from sklearn.metrics import d2_tweedie_score, mean_absolute_error, r2_score, root_mean_squared_error
from torch import Tensor

from bali.predictive import metrics
from bali.predictive.durations import DurationPredictive, durations
from bali.predictive.mixtures import ClassPredictive, Predictive
from bali.predictive.predictive_base import UndefinedError
from bali.predictive.survival_scores import concordance_of, integrated_brier_of
from bali.tables.errors import quoted
from bali.tables.target_column import Target

#: Nominal coverage of the intervals that are checked.
COVERAGE = 0.9
#: Times that a Brier score is averaged over.
_N_TIMES = 50

MEANINGS = {
    "rmse": "root mean squared error, in the units of the target",
    "mae": "mean absolute error, in the units of the target",
    "r2": "share of the variance that is explained",
    "d2": "share of the Poisson deviance that is explained",
    "concordance": "how often the row that lasted longer was predicted to; 1 is best, 0.5 is chance",
    "brier_over_time": "squared error of survival probabilities, averaged over times; lower is better",
    "log_likelihood": "mean log density or probability of what was observed; higher is better",
    "crps": "distance between prediction and observation, in the units of the target; lower is better",
    "coverage_90": "share of rows inside their 90 % interval; best near 0.9",
    "pit_distance": "of probability integral transforms from evenly spread ones; best near 0",
    "accuracy": "share of rows whose most probable class was right",
    "ece": "expected calibration error: gap between confidence and accuracy; best near 0",
    "auc": "area under the ROC curve; 1 is best, 0.5 is chance",
    "brier": "squared distance between probabilities and outcome (0 to 2); lower is better",
}


def observed_tensor(target: Target, y: NDArray[Any]) -> Tensor:
    """As predictions take it: bounds of durations, numbers of classes or numbers."""
    return durations(y[:, 0], y[:, 1]) if target.task == "durations" else torch.tensor(y)


class Scores:
    """Metrics of predictions and observed values, which may come in pieces."""

    def __init__(self, target: Target) -> None:
        self._target = target
        self._kept: dict[str, list[NDArray[np.float64]]] = {}
        self._generator = torch.Generator().manual_seed(0)  # of transforms where there is more than one
        self.n_rows = 0

    def add(self, predictive: Predictive, y: NDArray[np.float64]) -> dict[str, NDArray[np.float64]]:
        """`y` are numbers, numbers of classes, or times and events. Returns what was kept of these rows."""
        observed = observed_tensor(self._target, y)
        self.n_rows += len(y)
        found = {"y": y, "log_prob": predictive.log_prob(observed).double().cpu().numpy()}
        if isinstance(predictive, ClassPredictive):
            found["predicted"] = predictive.probabilities.double().cpu().numpy()
        else:
            found |= self._of_numbers(predictive, observed, y)
        for name, values in found.items():
            self._kept.setdefault(name, []).append(values)
        return found

    def _of_numbers(
        self, predictive: Predictive, observed: Tensor, y: NDArray[np.float64]
    ) -> dict[str, NDArray[np.float64]]:
        found = {"pit": metrics.pit(predictive, observed, self._generator)[:, 0].clip(0.0, 1.0)}
        if isinstance(predictive, DurationPredictive):
            median, survival = predictive.median[:, 0], predictive.survival(torch.as_tensor(self._times))
            # Of rows that were not over yet nobody knows whether they are inside: by their transforms.
            inside = (np.abs(found["pit"] - 0.5) <= COVERAGE / 2).astype(np.float64)
            parts = {"median": median, "survival": survival}
            return found | {name: part.double().cpu().numpy() for name, part in parts.items()} | {"inside": inside}
        low, high = (end[:, 0].double().cpu().numpy() for end in predictive.interval(COVERAGE))
        inside = ((low <= y) & (y <= high)).astype(np.float64)
        found |= {"predicted": predictive.mean[:, 0].double().cpu().numpy(), "inside": inside}
        return found | {"crps": predictive.crps(observed)[:, 0].double().cpu().numpy()}

    @property
    def _times(self) -> NDArray[np.float64]:
        return np.linspace(self._target.times[0], self._target.times[-1], _N_TIMES)

    def metrics(self) -> dict[str, float]:
        """Name → number. A score that these rows do not define is left out; `notes` says which."""
        kept = {name: np.concatenate(pieces) for name, pieces in self._kept.items()}
        y, log_likelihood = kept["y"], {"log_likelihood": float(kept["log_prob"].mean())}
        if self._target.task == "classification":
            return self._of_classes(y, kept["predicted"], log_likelihood)
        checks = {"coverage_90": float(kept["inside"].mean())}
        checks["pit_distance"] = float(stats.kstest(kept["pit"], "uniform").statistic)
        if self._target.task == "durations":
            return self._of_durations(kept) | log_likelihood | checks
        predicted = kept["predicted"]
        scores = {"rmse": float(root_mean_squared_error(y, predicted)), "mae": float(mean_absolute_error(y, predicted))}
        if np.ptp(y) > 0:
            scores["r2"] = float(r2_score(y, predicted))
            if self._target.task == "counts":
                least = np.finfo(np.float64).tiny
                scores["d2"] = float(d2_tweedie_score(y, np.maximum(predicted, least), power=1.0))
        return scores | log_likelihood | {"crps": float(kept["crps"].mean())} | checks

    def _of_durations(self, kept: dict[str, NDArray[np.float64]]) -> dict[str, float]:
        bounds, scores = durations(kept["y"][:, 0], kept["y"][:, 1]), dict[str, float]()
        try:
            scores["concordance"] = concordance_of(kept["median"], bounds)
            if self._times[0] < self._times[-1]:
                scores["brier_over_time"] = integrated_brier_of(kept["survival"], bounds, self._times)
        except UndefinedError:
            pass  # `notes` says so
        return scores

    def _of_classes(
        self, y: NDArray[np.float64], predicted: NDArray[np.float64], log_likelihood: dict[str, float]
    ) -> dict[str, float]:
        mixture = ClassPredictive(torch.as_tensor(predicted)[None])  # its mean is all that these scores use
        scores = {"accuracy": metrics.accuracy(mixture, y)} | log_likelihood
        scores["ece"] = metrics.expected_calibration_error(mixture, y)
        if not self._absent():
            scores["auc"] = metrics.auc(mixture, y)
        return scores | {"brier": metrics.brier(mixture, y)}

    def _absent(self) -> list[str]:
        """Classes without a row."""
        seen = np.unique(np.concatenate(self._kept["y"]))
        return [label for i, label in enumerate(self._target.classes) if i not in seen]

    def notes(self) -> list[str]:
        if self._target.task == "durations":
            absent = [name for name in ("concordance", "brier_over_time") if name not in self.metrics()]
            return [f"no {' and no '.join(absent)}: too few of the scored rows were over in time"] if absent else []
        absent = self._absent()
        return [f"no AUC: none of the scored rows is of class {quoted(absent)}"] if absent else []
