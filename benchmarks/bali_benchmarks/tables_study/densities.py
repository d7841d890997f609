"""From what a method predicts to a distribution with all scores, and the rows to judge its noise or its stopping by."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.model_selection import train_test_split
from torch import Tensor

from bali.predictive.mixtures import ClassPredictive, Predictive, RegressionPredictive

Array = NDArray[Any]
Fitted = Callable[[Array], Predictive]
#: Rows, targets, seed.
Fit = Callable[[Array, Array, int], Fitted]

HELD_OUT = 0.15


def gaussians(means: Array, variances: Array | float) -> RegressionPredictive:
    """A mixture of Gaussians for each row: means (S, n) or (n,), variances that broadcast to them."""
    centres = torch.as_tensor(np.atleast_2d(means)).double()
    spread = torch.as_tensor(np.array(np.broadcast_to(variances, centres.shape))).double()
    return RegressionPredictive(centres[..., None], torch.ones(1, 1, 1).double(), inflation=spread)


def classes(probabilities: Array) -> ClassPredictive:
    """Of one component, (n, C), or of several, (S, n, C)."""
    p = torch.as_tensor(np.asarray(probabilities)).double()
    return ClassPredictive(p if p.dim() == 3 else p[None])


def held_out(X: Array, y: Array, seed: int, classification: bool) -> tuple[Array, Array, Array, Array]:
    """Rows and targets to learn from, then those to stop by, with every class in both where that can be."""
    by_class = y if classification and np.bincount(y).min() >= 2 else None
    X, X_val, y, y_val = train_test_split(X, y, test_size=HELD_OUT, random_state=seed, stratify=by_class)
    return X, y, X_val, y_val


def smoothed_quantiles(of_rows: Callable[[Array], Array], X_val: Array, y_val: Array) -> Fitted:
    """Quantiles at evenly spread levels as equal parts of a mixture, each a Gaussian; one width, the likeliest.

    `of_rows` gives (n, levels). Quantiles that cross need no care: a mixture has no order.
    """
    spread = float(np.std(y_val)) + np.finfo(float).tiny
    means, target = of_rows(X_val).T, torch.as_tensor(y_val)

    def score(width: float) -> Tensor:
        return gaussians(means, width**2).log_prob(target).mean()

    best = max(spread * np.logspace(-3.0, 0.5, 50), key=lambda width: float(score(width)))
    return lambda Z: gaussians(of_rows(Z).T, best**2)
