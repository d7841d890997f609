"""What a model's record keeps of the rows that were held out: scores, single rows, and sums for the report's figures."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray

from bali.predictive.durations import DurationPredictive
from bali.predictive.mixtures import ClassPredictive, Predictive
from bali.predictive.survival_scores import KaplanMeier
from bali.tables.table_model import TableModel
from bali.tables.table_scores import COVERAGE, Scores

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
