"""A temperature for class probabilities, fitted on rows that were not trained on."""

from __future__ import annotations

import math

from scipy.optimize import minimize_scalar
from torch import Tensor

from bali.inference import LayerwiseInference
from bali.predictive import ClassPredictive

# Prior standard deviation of log temperature: a few rows do not move it far.
_PRIOR_STD = 0.3
_LARGEST = 2.0  # of |log temperature|


def fit_temperature(
    inference: LayerwiseInference, x: Tensor, y: Tensor, weight: Tensor, held_out: Tensor, n_samples: int = 32
) -> float:
    """The power T for which probabilities ∝ p^T of each weight sample make the held-out rows most likely.

    Members are candidates × folds; a row is predicted by the members of the fold that left it out.
    """
    rows = held_out.any(0)
    predictive = inference.predict(x[rows], n_samples)
    assert isinstance(predictive, ClassPredictive)
    n_folds, n = held_out[:, rows].shape
    probabilities = predictive.component_probabilities.reshape(-1, n_folds, n, predictive.component_probabilities.shape[-1])
    fold = held_out[:, rows].int().argmax(0)[None, None, :, None].expand(len(probabilities), 1, -1, probabilities.shape[-1])
    own = ClassPredictive(probabilities.gather(1, fold).squeeze(1))

    def loss(log_temperature: float) -> float:
        log_prob = own.tempered(math.exp(log_temperature)).log_prob(y[rows])
        return 0.5 * (log_temperature / _PRIOR_STD) ** 2 - float((log_prob * weight[rows]).sum())

    return math.exp(minimize_scalar(loss, bounds=(-_LARGEST, _LARGEST), method="bounded").x)
