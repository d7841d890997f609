"""What is fitted on the held-out examples after `bali.fit` has trained: the posterior's width, and noise or temperature.

Neither needs training again. Wider posteriors notice better what is foreign, and are less sure at home, which the
temperature or the noise makes good; so a wide one is wanted. With a flat prior on its logarithm, the likelihood of the
held-out examples gives the width a distribution, of which a high quantile is taken: among widths that so many examples
cannot tell apart, nearly the widest. It moves little where scores move little, so that the width is no matter of luck.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from bali.inference.inputs import Inputs
from bali.predictive.mixtures import ClassPredictive, Predictive, RegressionPredictive
from bali.training.calibration import Part, fit_noise, fit_temperature
from bali.training.course import Job
from bali.training.fitted import Fitted
from bali.training.fitted_values import Calibration

#: Shares of the damping that are tried, see `MatrixNormal`: the last is within a few per cent of Laplace's posterior, which
#: is as wide as the prior where classes are apart and gradients vanish; with the first, little more than the means is left.
WIDTHS = tuple(10.0 ** (k / 2) for k in range(-12, -1))
#: Prior variances over that of training, see `SumNormal`; of linearised predictions, and of networks with drawn weights.
PRIOR_WIDTHS = tuple(10.0 ** (k / 2) for k in range(-8, 7))
SAMPLE_WIDTHS = tuple(10.0**k for k in range(-8, 1))
#: The quantile of the width that is taken.
QUANTILE = 0.9
#: Weight samples, over all members, and held-out examples: more tell two numbers no better.
_SAMPLES, _EXAMPLES = 32, 4000


def calibrated(fitted: Fitted, job: Job) -> Calibration:
    """The calibration that makes the held-out examples likely, as wide as that allows."""
    n = min(len(job.held_out), _EXAMPLES)
    x, y = job.held_out.take(torch.arange(n))
    widths = PRIOR_WIDTHS if fitted.is_linearised else WIDTHS
    with fitted.asking_about(x):
        found = calibrated_at(fitted, x, y, likely_width(widths, lambda width: calibrated_at(fitted, x, y, width)[0]))[1]
        if not fitted.is_linearised:
            return found
        each = _samples_of_each(fitted)
        with fitted.network.evaluating():
            narrower = likely_width(
                SAMPLE_WIDTHS, lambda width: _fitted_to(fitted, fitted.sampled_outputs(x, each, width), y)[0]
            )
    return replace(found, sample_width=narrower, noise_rows=float(n))


def calibrated_at(fitted: Fitted, x: Inputs, y: Tensor, width: float) -> tuple[float, Calibration]:
    """Log-likelihood of examples with the best noise or temperature for a posterior of this width, and these."""
    before = fitted.calibration
    try:
        fitted.calibration = replace(before, width=width)
        with fitted.network.evaluating():
            return _fitted_to(fitted, fitted.linked_outputs(x, _samples_of_each(fitted)), y)
    finally:
        fitted.calibration = before


def _samples_of_each(fitted: Fitted) -> int:
    return -(-_SAMPLES // len(fitted.members))


def likely_width(widths: Sequence[float], score: Callable[[float], float]) -> float:
    """The quantile of the width's distribution given `score`, the log-likelihood of all held-out examples."""
    scores, logs = np.array([score(width) for width in widths]), np.log(widths)
    weights = np.exp(scores - scores.max())
    shares = (np.cumsum(weights) - weights / 2) / weights.sum()  # each width stands for the values about it
    return math.exp(float(np.interp(QUANTILE, shares, logs)))


def _fitted_to(fitted: Fitted, z: Tensor, y: Tensor) -> tuple[float, Calibration]:
    """Log-likelihood of the held-out examples with the best noise or temperature for outputs z, and that one."""
    calibration, noise = fitted.calibration, fitted.calibration.noise
    positions = y.shape[1 : z.dim() - 2]
    y, z = y.reshape(-1, *y.shape[1 + len(positions) :]), z.reshape(len(z), -1, z.shape[-1])
    predictive: Predictive
    if noise is not None:
        predictive = RegressionPredictive(z, noise[None].to(z))
        y = y.reshape(predictive.mean.shape)
        scale, dof = fit_noise([Part(predictive, y, torch.ones(len(y)))])
        found = replace(calibration, noise=noise * scale, noise_dof=dof)
        return float(predictive.with_noise(scale, dof).log_prob(y).sum()), found
    predictive = fitted.likelihood.predictive(z, None)
    if not isinstance(predictive, ClassPredictive):
        return float(predictive.log_prob(y).sum()), calibration
    temperature = fit_temperature([Part(predictive, y, torch.ones(len(y)))])
    found = replace(calibration, temperature=temperature)
    return float(predictive.tempered(temperature).log_prob(y).sum()), found
