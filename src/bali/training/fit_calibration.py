"""What is fitted on the held-out examples after `bali.fit` has trained: the posterior's width, and noise or temperature.

Neither needs training again. Wider posteriors notice better what is foreign, and are less sure at home, which the
temperature or the noise makes good; so of all widths that the held-out examples can hardly tell apart, the widest is taken.
"""

from __future__ import annotations

import torch
from torch import Tensor

from bali.predictive.mixtures import ClassPredictive, Predictive, RegressionPredictive
from bali.training.calibration import fit_noise, fit_temperature
from bali.training.course import Job
from bali.training.fitted import Calibration, Fitted
from bali.training.held_out import Part

#: Shares of the damping that are tried, see `MatrixNormal`: the last is within a few per cent of Laplace's posterior.
WIDTHS = (1e-4, 3e-4, 1e-3, 3e-3, 0.01, 0.03, 0.1)
#: Nats an example that held-out examples cannot tell from nothing.
INDIFFERENCE = 0.002
#: Weight samples, over all members, and held-out examples: more tell two numbers no better.
_SAMPLES, _EXAMPLES = 32, 4000


def calibrated(fitted: Fitted, job: Job) -> Calibration:
    """The calibration that makes the held-out examples most likely, as wide as that allows."""
    n = min(len(job.held_out), _EXAMPLES)
    x, y = job.held_out.take(torch.arange(n))
    before, each = fitted.calibration, -(-_SAMPLES // len(fitted.members))
    tried: list[tuple[float, Calibration]] = []
    for width in WIDTHS:
        fitted.calibration = Calibration(width=width, noise=before.noise)
        with fitted.network.evaluating():
            z = fitted.linked_outputs(x, each)
        tried.append(_fitted_to(fitted, z, y))
    fitted.calibration = before
    best = max(score for score, _ in tried)
    return max((c for score, c in tried if score >= best - INDIFFERENCE), key=lambda c: c.width)


def _fitted_to(fitted: Fitted, z: Tensor, y: Tensor) -> tuple[float, Calibration]:
    """Mean log-likelihood of the held-out examples with the best noise or temperature for outputs z, and that one."""
    calibration, noise = fitted.calibration, fitted.calibration.noise
    z = z.reshape(len(z), -1, z.shape[-1])
    predictive: Predictive
    if noise is not None:
        predictive = RegressionPredictive(z, noise[None].to(z))
        y = y.reshape(predictive.mean.shape)
        scale, dof = fit_noise([Part(predictive, y, torch.ones(len(y)))])
        found = Calibration(calibration.width, 1.0, noise * scale, dof)
        return float(predictive.with_noise(scale, dof).log_prob(y).mean()), found
    predictive = fitted.likelihood.predictive(z, None)
    if not isinstance(predictive, ClassPredictive):
        return float(predictive.log_prob(y).mean()), calibration
    y = y.reshape(-1)
    temperature = fit_temperature([Part(predictive, y, torch.ones(len(y)))])
    found = Calibration(calibration.width, temperature)
    return float(predictive.tempered(temperature).log_prob(y).mean()), found
