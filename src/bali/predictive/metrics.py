"""How good a prediction was, given what was observed.

Every function takes a predictive distribution and the observed targets and returns one number (`pit`: one for each row).
Numbers for regression are in the units of the targets, log-likelihoods in nats.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from sklearn.metrics import (
    accuracy_score,
    average_precision_score,
    roc_auc_score,
    roc_curve,
    root_mean_squared_error,
)
from torch import Tensor

from bali.predictive.durations import concordance as concordance
from bali.predictive.durations import integrated_brier as integrated_brier
from bali.predictive.mixtures import ClassPredictive, Predictive

Targets = Tensor | ArrayLike

#: Bins of the expected calibration error.
N_BINS = 15


def log_likelihood(predictive: Predictive, y: Targets) -> float:
    """Mean log predictive density (or probability) of the observations, in nats; higher is better."""
    return float(predictive.log_prob(torch.as_tensor(y)).mean())


# --- regression -------------------------------------------------------------------------------------------------


def rmse(predictive: Predictive, y: Targets) -> float:
    """Root mean squared error of the predictive mean, over all rows and outputs."""
    mean = _array(predictive.mean)
    squared_per_output = root_mean_squared_error(_columns(y, mean.shape), mean, multioutput="raw_values") ** 2
    return float(np.sqrt(squared_per_output.mean()))


def interval_coverage(predictive: Predictive, y: Targets, coverage: float = 0.9) -> float:
    """Fraction of observations inside the central interval with that nominal coverage; the nearer to it, the better."""
    low, high = (_array(end) for end in predictive.interval(coverage))
    observed = _columns(y, low.shape)
    return float(((low <= observed) & (observed <= high)).mean())


def interval_score(predictive: Predictive, y: Targets, coverage: float = 0.9) -> float:
    """Width of the central intervals, plus 2/(1 − coverage) times the distance of observations outside; lower is better."""
    low, high = (_array(end) for end in predictive.interval(coverage))
    observed = _columns(y, low.shape)
    outside = np.maximum(low - observed, 0) + np.maximum(observed - high, 0)
    return float((high - low + 2 / (1 - coverage) * outside).mean())


def pinball_loss(predictive: Predictive, y: Targets, level: float = 0.5) -> float:
    """Of the quantile with this level: the distance of observations, times `level` above it and 1 − `level` below it."""
    quantile = _array(predictive.quantiles(level)[0])
    above = _columns(y, quantile.shape) - quantile
    return float(np.maximum(level * above, (level - 1) * above).mean())


def crps(predictive: Predictive, y: Targets) -> float:
    """Mean continuous ranked probability score, over all rows and outputs, in the units of y; lower is better."""
    return float(predictive.crps(torch.as_tensor(y)).mean())


def pit(predictive: Predictive, y: Targets, generator: torch.Generator | None = None) -> NDArray[np.float64]:
    """Probability integral transforms F(y), (n, D): uniform on (0, 1) if predictions are calibrated.

    Where F has a step at y, as counts have, or y is only known to be between bounds, a number is drawn uniformly from what
    F covers there.
    """
    low, high = predictive.cdf_bounds(torch.as_tensor(y))
    if torch.equal(low, high):
        return _array(low)
    return _array(low + (high - low) * torch.rand(low.shape, generator=generator, dtype=low.dtype, device=low.device))


# --- classification ---------------------------------------------------------------------------------------------


def accuracy(predictive: ClassPredictive, y: Targets) -> float:
    """Fraction of rows whose most probable class was observed."""
    p, classes = _probabilities(predictive, y)
    return float(accuracy_score(classes, p.argmax(-1)))


def expected_calibration_error(predictive: ClassPredictive, y: Targets, n_bins: int = N_BINS) -> float:
    """Mean gap between confidence and accuracy; lower is better.

    The confidence of a row is the probability of its predicted class. Rows are put in `n_bins` bins of equal width on
    [0, 1], closed on the right: (0, 1/n], (1/n, 2/n], … In each bin, the gap is the absolute difference between the mean
    confidence and the fraction of correct predictions; the result weights gaps by the number of rows.
    """
    p, classes = _probabilities(predictive, y)
    confidence = p.max(-1)
    correct = p.argmax(-1) == classes
    which = np.clip(np.ceil(confidence * n_bins).astype(int) - 1, 0, n_bins - 1)
    # A bin's |mean confidence − accuracy| times its share of the rows is |Σ (confidence − correct)| / n.
    gaps = np.bincount(which, weights=confidence - correct, minlength=n_bins)
    return float(np.abs(gaps).sum() / len(classes))


def brier(predictive: ClassPredictive, y: Targets) -> float:
    """Squared distance between the probabilities and the observed class, summed over classes (0 to 2); lower is better."""
    p, classes = _probabilities(predictive, y)
    return float(((p - np.eye(p.shape[1])[classes]) ** 2).sum(1).mean())


def auc(predictive: ClassPredictive, y: Targets) -> float:
    """Area under the ROC curve; with more than two classes, the mean of one class against the rest."""
    p, classes = _probabilities(predictive, y)
    if p.shape[1] == 2:
        return float(roc_auc_score(classes, p[:, 1]))
    return float(roc_auc_score(classes, p, multi_class="ovr", labels=np.arange(p.shape[1])))


# --- what the training data were not like ----------------------------------------------------------------------


@dataclass(frozen=True)
class Detection:
    """How well a score tells rows like the training data ("in") from others ("out")."""

    auroc: float  # a row from outside has a higher score than one from inside with this probability
    aupr: float  # average precision in finding the rows from outside
    fpr95: float  # share of outside rows taken for inside ones by the threshold that passes 95 % of the inside ones


def out_of_distribution(
    inside: ClassPredictive, outside: ClassPredictive, score: Literal["entropy", "mutual_information"] = "entropy"
) -> Detection:
    """Detection by the entropy of the prediction, or by the mutual information of class and weights."""
    low, high = (_array(getattr(predictive, score)) for predictive in (inside, outside))
    is_outside = np.repeat([0, 1], [len(low), len(high)])
    scores = np.concatenate([low, high])
    false_positives, true_positives, _ = roc_curve(1 - is_outside, -scores, drop_intermediate=False)
    return Detection(
        auroc=float(roc_auc_score(is_outside, scores)),
        aupr=float(average_precision_score(is_outside, scores)),
        fpr95=float(false_positives[np.argmax(true_positives >= 0.95)]),
    )


# --- arrays -----------------------------------------------------------------------------------------------------


def _array(values: Targets) -> NDArray[np.float64]:
    """As NumPy, in float64."""
    return torch.as_tensor(values).detach().cpu().double().numpy()


def _columns(y: Targets, shape: tuple[int, ...]) -> NDArray[np.float64]:
    """Targets as (n, D); one-dimensional ones are a single column."""
    observed = _array(y)
    if observed.ndim == 1 and shape[1] == 1:
        observed = observed[:, None]
    if observed.shape != shape:
        raise ValueError(f"y has shape {observed.shape}, the prediction has {shape}")
    return observed


def _probabilities(predictive: ClassPredictive, y: Targets) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Class probabilities, summing to one in float64, and observed classes."""
    p, observed = _array(predictive.probabilities), _array(y)
    if observed.shape != (len(p),):
        raise ValueError(f"y has shape {observed.shape}, the prediction has {len(p)} rows")
    if len(p) == 0 or not np.isin(observed, np.arange(p.shape[1])).all():
        raise ValueError(f"y must hold class indices 0..{p.shape[1] - 1}, at least one")
    return p / p.sum(-1, keepdims=True), observed.astype(np.int64)
