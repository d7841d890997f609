"""What is fitted on rows that were not trained on: the noise of a regression, the temperature of class probabilities.

The noise that inference finds is that of the training rows: too small where the network fits them too closely, too large
where the spread of the weights is in it already. Its scale and the heaviness of its tails are two numbers, which held-out
rows tell well.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.optimize import minimize, minimize_scalar
from scipy.special import gammaln
from torch import Tensor

from bali.predictive.mixtures import ClassPredictive, Predictive, RegressionPredictive


class Part(NamedTuple):
    """Some held-out rows, predicted by the mixture of the members that hold them out."""

    predictive: Predictive
    y: Tensor
    weight: Tensor  # (n,)


# Prior standard deviations of the logarithms: a few rows do not move them far.
_TEMPERATURE_STD, _SCALE_STD, _DOF_STD = 0.3, 1.0, 1.0
_LARGEST, _LARGEST_SCALE = 2.0, 6.0  # of |log temperature| and |log scale|
#: Degrees of freedom: at least so many that a variance exists and is not far from what a sample of it shows.
LEAST_DOF, TYPICAL_DOF, MOST_DOF = 3.0, 10.0, 300.0
# More rows tell two numbers no better.
_MAX_ROWS = 4000


class NoiseFit(NamedTuple):
    """Noise with `scale` times the inferred covariance and the tails of a Student-t."""

    scale: float
    dof: float

    def of(self, predictive: RegressionPredictive) -> RegressionPredictive:
        return predictive.with_noise(self.scale, self.dof)


def fit_noise(parts: Sequence[Part]) -> NoiseFit:
    """The noise that makes the held-out rows most likely, with a weak prior."""
    moments = _row_moments(parts)
    every = len(moments.weight) // _MAX_ROWS + 1
    few = _RowMoments(*(values[::every] for values in moments))

    def loss(at: NDArray[np.float64]) -> float:
        log_scale, log_dof = at
        prior = (log_scale / _SCALE_STD) ** 2 + ((log_dof - math.log(TYPICAL_DOF)) / _DOF_STD) ** 2
        return float(0.5 * prior - few.weight @ few.log_prob(NoiseFit(math.exp(log_scale), math.exp(log_dof))))

    bounds = [(-_LARGEST_SCALE, _LARGEST_SCALE), (math.log(LEAST_DOF), math.log(MOST_DOF))]
    best = minimize(loss, np.array([0.0, math.log(TYPICAL_DOF)]), method="L-BFGS-B", bounds=bounds).x
    return NoiseFit(math.exp(best[0]), math.exp(best[1]))


class _RowMoments(NamedTuple):
    """What is asked of the predictions of held-out rows: (n, D), and (n,) weights.

    The mixture itself would be misleading here: with a few components and little noise, it is a matter of luck whether
    one of them is near an observation.
    """

    error: NDArray[np.float64]  # of the mean
    spread: NDArray[np.float64]  # variance of the components' means
    noise: NDArray[np.float64]  # mean variance of their noise
    weight: NDArray[np.float64]

    def log_prob(self, fit: NoiseFit) -> NDArray[np.float64]:
        """Of each row, with a Student-t of the moments' scale for each output."""
        v, scale = fit.dof, self.spread + fit.scale * self.noise
        constant = gammaln((v + 1) / 2) - gammaln(v / 2) - 0.5 * math.log(v * math.pi)
        terms = constant - 0.5 * np.log(scale) - (v + 1) / 2 * np.log1p(self.error**2 / (v * scale))
        found: NDArray[np.float64] = terms.sum(-1)
        return found


def _row_moments(parts: Sequence[Part]) -> _RowMoments:
    columns: list[tuple[Tensor, ...]] = []
    for predictive, y, weight in parts:
        assert isinstance(predictive, RegressionPredictive)
        error = y.reshape(predictive.mean.shape) - predictive.mean
        columns.append((error, predictive.epistemic, predictive.aleatoric, weight))
    return _RowMoments(*(torch.cat(column).double().cpu().numpy() for column in zip(*columns, strict=True)))


def fit_temperature(parts: Sequence[Part]) -> float:
    """The power T for which probabilities ∝ p^T of each weight sample make the held-out rows most likely."""

    def loss(log_temperature: float) -> float:
        total = sum(float(p.weight @ p.predictive.tempered(math.exp(log_temperature)).log_prob(p.y)) for p in few)
        return 0.5 * (log_temperature / _TEMPERATURE_STD) ** 2 - total

    few = [_ClassPart(p) for p in parts]
    return math.exp(minimize_scalar(loss, bounds=(-_LARGEST, _LARGEST), method="bounded").x)


class _ClassPart:
    """A part of which only class probabilities are asked."""

    def __init__(self, part: Part) -> None:
        assert isinstance(part.predictive, ClassPredictive)
        self.predictive, self.y = part.predictive, part.y
        self.weight = part.weight.to(part.predictive.component_probabilities.dtype)
