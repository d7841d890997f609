"""Scores of a table's predictions, gathered piece by piece: of each row only what the scores need is kept.

A model's record keeps of the rows that were held out their scores, single rows, and sums for the report's figures.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from scipy import stats
from sklearn.metrics import d2_tweedie_score, mean_absolute_error, r2_score, root_mean_squared_error
from torch import Tensor

from bali.predictive import metrics
from bali.predictive.durations import DurationPredictive, KaplanMeier, concordance_of, durations, integrated_brier_of
from bali.predictive.mixtures import ClassPredictive, Predictive
from bali.predictive.predictive_base import UndefinedError
from bali.tables.errors import quoted
from bali.tables.table_model import TableModel
from bali.tables.target_column import Target

#: Nominal coverage of the intervals that are checked.
COVERAGE = 0.9
#: Levels of the quantiles that are scored: the ends of these intervals, and the middle.
_LEVELS = ((1 - COVERAGE) / 2, 0.5, (1 + COVERAGE) / 2)
#: Times that a Brier score is averaged over.
_N_TIMES = 50


class MetricText(NamedTuple):
    label: str
    meaning: str
    is_share: bool = False  # shown as a percentage


METRICS = {
    "rmse": MetricText("Root mean squared error", "the typical error, large ones counted more; in the target's units"),
    "mae": MetricText("Mean absolute error", "how far off a prediction is on average; in the target's units"),
    "r2": MetricText("R²", "1 is perfect, 0 no better than always predicting the average"),
    "d2": MetricText("D²", "share of the Poisson deviance that is explained; 1 is perfect, 0 no better than the average"),
    "concordance": MetricText(
        "Concordance", "of two rows, the one that lasted longer was predicted to; 1 is perfect, 0.5 guessing"
    ),
    "brier_over_time": MetricText("Integrated Brier score", "squared error of survival probabilities; lower is better"),
    "crps": MetricText("CRPS", "distance between prediction and truth, in the target's units; lower is better"),
    "interval_score": MetricText(
        "Interval score", "width of 90 % intervals, and a penalty for values outside; in the target's units; lower is better"
    ),
    "pinball": MetricText("Pinball loss", "of the 5, 50 and 95 % quantiles, in the target's units; lower is better"),
    "pit_distance": MetricText(
        "PIT distance", "how far true values are from falling evenly into their predictions; best near 0"
    ),
    "log_likelihood": MetricText("Log-likelihood", "per row; rewards accuracy and honest uncertainty; higher is better"),
    "coverage_90": MetricText("Coverage of 90\u202f% intervals", "true values inside their interval; best near 90 %", True),
    "accuracy": MetricText("Accuracy", "rows whose predicted class is right", True),
    "ece": MetricText("Calibration error", "gap between confidence and accuracy; best near 0", True),
    "auc": MetricText("Area under the ROC curve", "1 is perfect, 0.5 is guessing"),
    "brier": MetricText("Brier score", "squared error of the probabilities, from 0 to 2; lower is better"),
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
        quantiles = predictive.quantiles(list(_LEVELS))[..., 0].double().cpu().numpy()  # (3, n)
        low, high = quantiles[0], quantiles[-1]
        inside = ((low <= y) & (y <= high)).astype(np.float64)
        found |= {"predicted": predictive.mean[:, 0].double().cpu().numpy(), "inside": inside}
        above, level = y - quantiles, np.array(_LEVELS)[:, None]
        losses = np.maximum(level * above, (level - 1) * above)
        # Of both ends of the interval, times 2 / (1 − coverage), it is the width and the penalty of what is outside.
        found |= {"pinball": losses.mean(0), "interval_score": (losses[0] + losses[-1]) * 2 / (1 - COVERAGE)}
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
        of_distribution = {name: float(kept[name].mean()) for name in ("crps", "interval_score", "pinball")}
        return scores | log_likelihood | of_distribution | checks

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


# --- rows that were kept aside ----------------------------------------------------------------------------------------


#: Held-out rows that a record keeps, and how many numbers they may have: one a class.
MAX_ROWS, MAX_NUMBERS = 2000, 400_000
#: Bars of a rootogram, and points and groups of survival curves.
MAX_BARS, N_TIMES, N_GROUPS = 30, 40, 3


@dataclass
class ScoredRows:
    metrics: dict[str, float] = field(default_factory=dict)
    rows: dict[str, list[Any]] = field(default_factory=dict)  # lists of equal length
    checks: dict[str, Any] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)


def score_rows(model: TableModel, frame: pd.DataFrame, y: NDArray[Any], ids: pd.Series, seed: int) -> ScoredRows:
    """Metrics of all, the record of (some of) them, and what is to be said about them."""
    if len(y) == 0:
        return ScoredRows()
    kept, n_kept = np.arange(len(y)), min(MAX_ROWS, MAX_NUMBERS // max(len(model.target.classes), 1))
    if len(y) > n_kept:
        kept = np.sort(np.random.default_rng(seed).choice(kept, n_kept, replace=False))
    scores, pieces, parts = Scores(model.target), [], list[Predictive]()
    for start in range(0, len(y), model.rows_at_once):
        rows = np.arange(start, min(start + model.rows_at_once, len(y)))
        predictive, chosen = model.predictive(frame.iloc[rows]), np.isin(rows, kept)
        found = scores.add(predictive, y[rows])
        recorded = _recorded(predictive) | {"pit": found["pit"]} if "pit" in found else _recorded(predictive)
        pieces.append({name: part[chosen].tolist() for name, part in recorded.items()})
        parts.append(predictive.rows(torch.as_tensor(np.flatnonzero(chosen))))
    recorded_rows: dict[str, Any] = {"row": _plain_names(ids.iloc[kept])}
    durations = model.target.task == "durations"
    recorded_rows |= {"y": (y[kept, 0] if durations else y[kept]).tolist()}
    recorded_rows |= {"event": y[kept, 1].tolist()} if durations else {}
    recorded_rows |= {name: [value for piece in pieces for value in piece[name]] for name in pieces[0]}
    if model.target.task == "classification":
        recorded_rows["classes"] = list(model.target.classes)
    predictive = parts[0].joined(parts[1:])
    checks: dict[str, Any] = {}
    if model.target.task == "counts":
        checks["rootogram"] = rootogram(predictive, y[kept])
    if isinstance(predictive, DurationPredictive):
        checks["survival"] = survival_by_risk(predictive, y[kept])
    return ScoredRows(scores.metrics(), recorded_rows, checks, scores.notes())


def _plain_names(ids: pd.Series) -> list[Any]:
    """Names of rows as JSON can say them: Parquet files have dates and decimal numbers, too."""
    return [name if isinstance(name, str | int | float) else None if pd.isna(name) else str(name) for name in ids.tolist()]


def _recorded(predictive: Predictive) -> dict[str, NDArray[np.float64]]:
    """Summaries of rows."""
    if isinstance(predictive, ClassPredictive):
        parts = {
            "probabilities": predictive.probabilities,
            "entropy": predictive.entropy,
            "mutual_information": predictive.mutual_information,
        }
        return {name: part.double().cpu().numpy() for name, part in parts.items()}
    low, high = predictive.interval(COVERAGE)
    if isinstance(predictive, DurationPredictive):
        parts = {"median": predictive.median, "low": low, "high": high}
    else:
        parts = {"mean": predictive.mean, "std": predictive.std, "low": low, "high": high}
        parts |= {"epistemic": predictive.epistemic, "aleatoric": predictive.aleatoric}
    return {name: part[:, 0].double().cpu().numpy() for name, part in parts.items()}


def rootogram(predictive: Predictive, y: NDArray[np.float64]) -> dict[str, list[float]]:
    """How many rows were to have each count, and how many had: from `at` on, up to the next."""
    width = max(1, -(-int(y.max() + 1) // MAX_BARS))
    at = np.arange(0, y.max() + 1, width)
    below = [np.zeros(1)]
    for start in at:
        last = torch.full((predictive.n_rows,), float(start + width - 1), dtype=torch.float64)
        below.append(predictive.cdf(last).double().cpu().numpy().sum(0))
    observed = np.bincount((y // width).astype(int), minlength=len(at))
    expected = np.diff(np.concatenate(below)).clip(0.0)  # of rounding
    return {"at": at.tolist(), "expected": expected.tolist(), "observed": observed.astype(float).tolist()}


def survival_by_risk(predictive: DurationPredictive, y: NDArray[np.float64]) -> dict[str, Any]:
    """Of rows with a short, a middling and a long median: the mean of their survival curves, and Kaplan and Meier's."""
    times = np.linspace(0.0, np.quantile(y[:, 0], 0.95), N_TIMES)
    survival = predictive.survival(torch.as_tensor(times)).double().cpu().numpy().clip(0.0, 1.0)
    order = np.argsort(predictive.median[:, 0].double().cpu().numpy(), kind="stable")
    groups = []
    for rows in np.array_split(order, N_GROUPS) if len(order) >= 10 * N_GROUPS else [order]:
        curve = KaplanMeier(y[rows, 0], y[rows, 1] == 1.0)
        groups.append(
            {"rows": len(rows), "predicted": survival[rows].mean(0).tolist(), "observed": curve.at(times).tolist()}
        )
    return {"times": times.tolist(), "groups": groups}
