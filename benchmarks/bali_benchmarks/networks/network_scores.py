"""Scores of a trained network on test rows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor

from bali.predictive import metrics
from bali.predictive.mixtures import ClassPredictive, Predictive
from bali_benchmarks.networks.task_rows import Rows


def scores(predict: Callable[[Tensor], Predictive], rows: Rows) -> dict[str, Any]:
    """Of a regression in standardised units; of an image network also how well it tells foreign images."""
    x, y = rows.test
    predicted = predict(x)
    if not isinstance(predicted, ClassPredictive):
        return {"nll": -metrics.log_likelihood(predicted, y), "rmse": metrics.rmse(predicted, y)}
    y = y.reshape(-1)
    found: dict[str, Any] = {
        "nll": -metrics.log_likelihood(predicted, y),
        "accuracy": metrics.accuracy(predicted, y),
        "ece": metrics.expected_calibration_error(predicted, y),
    }
    if rows.outside is not None:
        outside = predict(rows.outside)
        assert isinstance(outside, ClassPredictive)
        found["auroc_entropy"] = metrics.out_of_distribution(predicted, outside, "entropy").auroc
        if predicted.n_components > 1:
            information = metrics.out_of_distribution(predicted, outside, "mutual_information")
            found["auroc_mutual_information"] = information.auroc
    return found
