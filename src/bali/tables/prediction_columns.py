"""What `bali predict` writes about a row: the columns of each task."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from bali.predictive.durations import DurationPredictive
from bali.predictive.mixtures import ClassPredictive, Predictive
from bali.predictive.predictive_base import UndefinedError
from bali.tables.target_column import Target

Columns = dict[str, NDArray[Any]]


def prediction_columns(
    predictive: Predictive, target: Target, coverage: float, times: Sequence[float] | None = None
) -> Columns:
    """Regression and counts: std² = epistemic_std² + aleatoric_std², all in the units of the target.

    Classification: entropy = epistemic + aleatoric, in nats. Durations: the probability of lasting longer than each of
    `times`, by default those of the target.
    """
    if isinstance(predictive, ClassPredictive):
        return _classes(predictive, target)
    low, high = predictive.interval(coverage)
    if isinstance(predictive, DurationPredictive):
        parts = {"median": predictive.median, "mean": _mean(predictive), "lower": low, "upper": high}
        at = target.survival_times if times is None else list(times)
        survival = predictive.survival(torch.tensor(at)) if at else low[:, :0]
        parts |= {f"survival_{time:g}": survival[:, i : i + 1] for i, time in enumerate(at)}
        return {name: _column(part) for name, part in parts.items() if part is not None}
    found: dict[str, Tensor] = {"mean": predictive.mean}
    if target.task == "counts":
        found["median"] = predictive.median
    found |= {"std": predictive.std, "lower": low, "upper": high}
    if target.task == "counts":
        found["probability_0"] = predictive.cdf(torch.zeros(predictive.n_rows, dtype=torch.float64))
    found |= {"epistemic_std": predictive.epistemic.sqrt(), "aleatoric_std": predictive.aleatoric.sqrt()}
    return {name: _column(part) for name, part in found.items()}


def _mean(predictive: Predictive) -> Tensor | None:
    """Where it exists."""
    try:
        return predictive.mean
    except UndefinedError:
        return None


def _column(part: Tensor) -> NDArray[np.float64]:
    return part[:, 0].double().cpu().numpy()


def _classes(predictive: ClassPredictive, target: Target) -> Columns:
    p = predictive.probabilities.double().cpu().numpy()
    columns: Columns = {"class": np.array(target.classes, dtype=object)[p.argmax(1)]}
    columns |= {f"probability_{label}": p[:, i] for i, label in enumerate(target.classes)}
    parts = {
        "entropy": predictive.entropy,
        "epistemic": predictive.mutual_information,
        "aleatoric": predictive.aleatoric,
    }
    return columns | {name: part.double().cpu().numpy() for name, part in parts.items()}
