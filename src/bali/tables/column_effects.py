"""What each column does to the prediction, and how much it matters: for the report, within a number of seconds.

The effect is a partial dependence: the column is set to one value in all of some rows, and what is predicted is averaged
over them. Its band is how far networks and weight samples disagree about that average. A column matters as much as the
log-likelihood of rows falls when its cells are dealt out among them anew.
"""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from torch import Tensor

from bali.predictive.durations import DurationPredictive
from bali.predictive.family_predictive import FamilyPredictive
from bali.predictive.mixtures import ClassPredictive, Predictive, RegressionPredictive
from bali.predictive.two_scales import TwoScalePredictive
from bali.tables.cells import Column, numeric_cells
from bali.tables.table_model import TableModel
from bali.tables.table_scores import observed_tensor

#: Rows that averages are over, points of a curve, categories of one, and columns that are looked at.
N_ROWS, N_POINTS, MAX_CATEGORIES, MAX_COLUMNS = 64, 11, 8, 60
#: Rows whose log-likelihood is compared, and weight samples for all of this.
N_SCORED, N_SAMPLES = 400, 32
_BAND, LEAST_LOG_PROB = (0.05, 0.95), -1e6


def column_effects(
    model: TableModel, frame: pd.DataFrame, y: NDArray[Any], *, seed: int, seconds: float
) -> list[dict[str, Any]]:
    """The columns that there was time for, those that matter most first."""
    rng, deadline, found = np.random.default_rng(seed), time.monotonic() + seconds, list[dict[str, Any]]()
    scored = rng.permutation(len(frame))[:N_SCORED]
    few, rows = frame.iloc[scored], frame.iloc[scored[:N_ROWS]]
    observed, estimator = observed_tensor(model.target, y[scored]), model.estimator
    samples = estimator.n_samples
    estimator.set_params(n_samples=min(samples, N_SAMPLES))
    try:
        known = _log_prob(model, few, observed)
        for column in model.encoder.columns[:MAX_COLUMNS]:
            dealt = few.assign(**{column.name: few[column.name].to_numpy()[rng.permutation(len(few))]})
            loss = known - _log_prob(model, dealt, observed)
            importance = {"importance": float(loss.mean()), "error": float(loss.std() / np.sqrt(len(loss)))}
            effect = _effect(model, rows, column, frame[column.name])
            if effect is not None:
                found.append({"name": column.name, "kind": column.kind} | importance | effect)
            if time.monotonic() > deadline:
                break
    finally:
        estimator.set_params(n_samples=samples)
    return sorted(found, key=lambda effect: -effect["importance"])


def _log_prob(model: TableModel, frame: pd.DataFrame, observed: Tensor) -> NDArray[np.float64]:
    """Of each row; what cannot be at all counts as very unlikely."""
    found: NDArray[np.float64] = model.predictive(frame).log_prob(observed).double().cpu().numpy().clip(LEAST_LOG_PROB)
    return found


def _effect(model: TableModel, rows: pd.DataFrame, column: Column, cells: pd.Series) -> dict[str, Any] | None:
    """Average predictions with the column at each of its points; None where it has fewer than two."""
    at, values = _points(column, cells)
    if len(at) < 2:
        return None
    changed = [rows.assign(**{column.name: pd.Series([value] * len(rows), index=rows.index)}) for value in values]
    predictive = model.predictive(pd.concat(changed, ignore_index=True))
    by_sample = _average_parts(predictive, model).reshape(predictive.n_components, len(at), len(rows), -1).mean(2)
    which = int(by_sample.mean(0).std(0).argmax())  # of classes, the one that moves most
    curves = by_sample[..., which]
    low, high = np.quantile(curves, _BAND, axis=0)
    found: dict[str, Any] = {"at": at, "mean": curves.mean(0).tolist(), "low": low.tolist(), "high": high.tolist()}
    if isinstance(predictive, ClassPredictive):
        found["class"] = model.target.classes[which]
    if isinstance(predictive, RegressionPredictive | TwoScalePredictive):
        noise = predictive.aleatoric[:, 0].double().sqrt().cpu().numpy()
        found["noise"] = noise.reshape(len(at), -1).mean(1).tolist()
    return found


def _average_parts(predictive: Predictive, model: TableModel) -> NDArray[np.float64]:
    """(S, n, ·): class probabilities, means, or of durations the probability to last longer than half of all did."""
    if isinstance(predictive, ClassPredictive):
        parts = predictive.component_probabilities
    elif isinstance(predictive, RegressionPredictive):
        parts = predictive.means
    elif isinstance(predictive, DurationPredictive):
        middle = torch.tensor(model.target.times[len(model.target.times) // 2], dtype=torch.float64)
        parts = 1.0 - predictive.family.cdf(middle)
    else:
        assert isinstance(predictive, FamilyPredictive)
        parts = predictive.family.mean()
    return parts.double().cpu().numpy()


def _points(column: Column, cells: pd.Series) -> tuple[list[Any], list[Any]]:
    """Where a curve has its points, and the cells that stand for them: quantiles, or the most frequent categories."""
    if column.kind == "category":
        counts = cells.dropna().value_counts()
        common = list(counts.index[:MAX_CATEGORIES])
        return [str(value) for value in common], common
    numbers = numeric_cells(cells, column.kind)
    numbers = numbers[np.isfinite(numbers)]
    if not len(numbers):
        return [], []
    quantiles = np.unique(np.quantile(numbers, np.linspace(0.02, 0.98, N_POINTS), method="nearest"))
    at = quantiles.tolist()
    if column.kind == "date":
        return at, [pd.Timestamp("1970-01-01") + pd.Timedelta(days=value) for value in at]
    return at, at
