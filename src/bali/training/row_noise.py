"""Noise of each row: learnt from the residuals of rows by members that did not train on them.

Residuals of training rows are too small where a network fits them closely, and a network that learns mean and noise at once
neglects what it takes for noise. Here means are learnt first; then a few small networks learn the logarithm of the scale of
the held-out residuals from the inputs and the predicted means, with a Student-t in mind so that single residuals count
little. Whether it is worth it is judged on residuals that these networks have not seen: where noise is constant, so is the
prediction of it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from bali.inference.stack_pass import forward
from bali.layers.modules import ACTIVATIONS
from bali.predictive import families
from bali.predictive.likelihood import LARGEST_LOG, FamilyLikelihood, exp
from bali.training.stack_course import CourseRules, StackCourse, StackData, initial_means

MEMBERS, WIDTH = 5, 32
_ACTIVATION, _DOF = "gelu", 4.0
_CONSTANT = math.lgamma((_DOF + 1) / 2) - math.lgamma(_DOF / 2) - 0.5 * math.log(_DOF * math.pi)  # of its density
#: A prior that asks for reasons: noise is nearly constant unless residuals say otherwise.
_RULES = CourseRules(n_steps=250, batch_size=256, prior_variance=1.0)
#: Fewer held-out residuals tell nothing about where noise is larger.
_LEAST_ROWS = 40
#: Predicted means among the inputs: the noise often goes with the level.
_MEANS_SCALE = 1.5
_MOST_ROWS = 20_000


class _Scale(FamilyLikelihood):
    """Residuals with the tails of a Student-t; outputs are logarithms of their scales."""

    n_parameters: ClassVar[int] = 1

    def family(self, z: Tensor) -> families.Family:
        return families.StudentT(torch.zeros_like(z), exp(z), _DOF)

    def evaluate(self, z: Tensor, y: Tensor, noise_factor: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Written out: autograd would take half the time of these small networks' steps."""
        log_scale = z.double().clamp(-LARGEST_LOG, LARGEST_LOG)
        ratio = (y * log_scale.neg().exp_()).square_().div_(_DOF)
        log_prob = torch.log1p(ratio).mul_(-0.5 * (_DOF + 1)).sub_(log_scale).add_(_CONSTANT)
        gradient = (ratio / (1.0 + ratio)).mul_(_DOF + 1).sub_(1.0)
        return log_prob.sum(-1).to(z.dtype), gradient.masked_fill_(log_scale.abs() == LARGEST_LOG, 0.0).to(z.dtype)


@dataclass(frozen=True)
class RowNoise:
    """Networks of the logarithm of a row's noise scale, in units of `unit`."""

    means: list[Tensor]
    unit: Tensor  # (D,)
    gain: float  # of held-out residuals over a constant scale, nats a row

    def __call__(self, x: Tensor, mean: Tensor) -> Tensor:
        """Scales (n, D) for encoded rows x and predicted means (n, D), relative to a typical row's."""
        with torch.no_grad():
            z = forward([m.to(x.dtype) for m in self.means], ACTIVATIONS[_ACTIVATION](), _inputs(x, mean)).outputs
        return exp(z).mean(0) * self.unit.to(x.dtype)


def _inputs(x: Tensor, mean: Tensor) -> Tensor:
    return torch.cat([x, _MEANS_SCALE * mean.to(x.dtype)], -1)


def learn_row_noise(
    x: Tensor, mean: Tensor, residual: Tensor, weight: Tensor, generator: torch.Generator
) -> RowNoise | None:
    """From encoded rows (m, F), predicted means and residuals (m, D) at unit scale; None where a constant does as well."""
    if len(x) < _LEAST_ROWS:
        return None
    if len(x) > _MOST_ROWS:
        x, mean, residual, weight = (t[:_MOST_ROWS] for t in (x, mean, residual, weight))
    n, d = residual.shape
    unit = residual.abs().median(0).values.clamp_min(1e-6) * 1.4826
    order = torch.randperm(n, generator=generator, device=x.device)
    fold = torch.empty_like(order)
    fold[order] = torch.arange(n, device=x.device) % MEMBERS
    held_out = fold == torch.arange(MEMBERS, device=x.device)[:, None]
    data = StackData(_inputs(x, mean), (residual / unit).to(x.dtype), weight, held_out)
    means = initial_means(MEMBERS, [data.x.shape[1], WIDTH, d], generator, x.dtype)
    course = StackCourse(means, _ACTIVATION, _Scale(), data, _RULES, generator)
    for _ in course.run(_RULES.n_steps):
        pass
    likelihood, log_scales = _Scale(), torch.linspace(-3.0, 3.0, 121, dtype=x.dtype, device=x.device)
    by_row = likelihood.evaluate(course.outputs(course.best, data.x), data.y)[0]
    by_row = (by_row * held_out).sum(0)  # every row by the member that holds it out
    constants = torch.stack([likelihood.evaluate(s.expand(n, d), data.y)[0] for s in log_scales])
    constant = constants[(constants * weight).sum(-1).argmax()]
    share = weight / weight.sum()
    gain = ((by_row - constant) * share).sum()
    error = ((by_row - constant - gain).square() * share.square()).sum().sqrt()
    if not bool(gain > error) or not math.isfinite(gain.item()):
        return None
    return RowNoise(course.best, unit, gain.item())
