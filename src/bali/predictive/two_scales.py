"""Numbers that are predicted as they are by some networks, and by their logarithms by others: one mixture of both."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Self

import torch
from torch import Tensor

from bali.conjugate.sampling import chi_square, standard_normal
from bali.predictive.bounded_families import LogNormal
from bali.predictive.families import Family, Normal, StudentT
from bali.predictive.family_predictive import FamilyPredictive
from bali.predictive.mixtures import RegressionPredictive

#: Gaussians that stand for a Student-t of logarithms, since exp of a Student-t has no mean.
_GAUSSIANS = 5


@dataclass(frozen=True)
class OnTwoScales(Family):
    """Gaussians or Student-t's, and exp of them where `in_log` is one.

    A width is that of the noise times `widening`, which is above one as weights are not known.
    """

    loc: Tensor
    noise: Tensor  # scales
    widening: Tensor
    in_log: Tensor  # zeros and ones
    dof: float | None
    log_dof: float | None  # where `in_log` is one

    @property
    def _plain(self) -> Normal:
        scale = self.noise * self.widening
        return Normal(self.loc, scale) if self.dof is None else StudentT(self.loc, scale, self.dof)

    @cached_property
    def _logs(self) -> LogNormal:
        """(5, S, n, D), or one instead of five; where `in_log` is zero, loc may be far too large for exp."""
        factors = _noise_factors(self.log_dof).to(self.loc).reshape(-1, *(1 for _ in self.loc.shape))
        scale = self.noise * self.widening * factors
        return LogNormal((self.loc * self.in_log).expand_as(scale), torch.where(self.in_log.bool(), scale, 1.0))

    def _chosen(self, of_log: Tensor, of_plain: Tensor) -> Tensor:
        return torch.where(self.in_log.bool(), of_log, of_plain)

    def log_prob(self, y: Tensor) -> Tensor:
        positive = y > 0
        each = self._logs.log_prob(torch.where(positive, y, 1.0))
        of_log = each.logsumexp(0) - math.log(len(each))
        return self._chosen(torch.where(positive, of_log, -torch.inf), self._plain.log_prob(y))

    def mean(self) -> Tensor:
        return self._chosen(self._logs.mean().mean(0), self._plain.mean())

    def variance(self) -> Tensor:
        each = self._logs
        of_log = each.variance().mean(0) + each.mean().var(0, correction=0)
        return self._chosen(of_log, self._plain.variance())

    def of_noise(self) -> Self:
        """As if weights were known."""
        return replace(self, widening=torch.ones_like(self.widening))

    def cdf(self, y: Tensor) -> Tensor:
        return self._chosen(self._logs.cdf(y).mean(0), self._plain.cdf(y))

    def reach(self) -> tuple[Tensor, Tensor]:
        centre, width = self._plain.reach()
        middle = self._logs.loc[0].exp()
        return self._chosen(middle, centre), self._chosen(middle * width, width)

    def sample(self, generator: torch.Generator | None) -> Tensor:
        normal, each = standard_normal(self.loc.shape, self.loc, generator), self._logs
        which = torch.randint(len(each.scale), (1, *self.loc.shape), generator=generator, device=self.loc.device)
        of_log = (each.loc[0] + each.scale.gather(0, which)[0] * normal).exp()
        if self.dof is not None:
            normal = normal * (self.dof / chi_square(torch.full_like(self.loc, self.dof), generator)).sqrt()
        return self._chosen(of_log, self.loc + self.noise * self.widening * normal)

    def tempered(self, power: float) -> Self:
        return replace(self, noise=self.noise / math.sqrt(power))


def _noise_factors(dof: float | None) -> Tensor:
    """Of standard deviations: square roots of dof/χ² at the middles of equally likely parts of its distribution."""
    if dof is None:
        return torch.ones(1)
    from scipy import special

    middles = (torch.arange(_GAUSSIANS, dtype=torch.float64) + 0.5) / _GAUSSIANS
    return torch.as_tensor(dof / special.chdtri(dof, middles.numpy())).sqrt()


@dataclass(frozen=True)
class TwoScalePredictive(FamilyPredictive):
    """Of one column. `epistemic` has the widening in it, `aleatoric` is the noise alone."""

    family: OnTwoScales

    @property
    def aleatoric(self) -> Tensor:
        return self.family.of_noise().variance().mean(0)

    @property
    def epistemic(self) -> Tensor:
        widened = (self.family.variance() - self.family.of_noise().variance()).mean(0)
        return self.family.mean().var(0, correction=0) + widened.clamp_min(0.0)

    def as_gaussians(self) -> RegressionPredictive:
        """With Gaussian components of the same means and variances, for what is known of Gaussians only."""
        noise, variance = self.family.of_noise().variance(), self.family.variance()
        typical = noise.mean()
        inflation = (variance / noise).clamp_min(1.0)[..., 0]
        return RegressionPredictive(
            self.family.mean(), typical.reshape(1, 1, 1), inflation, None, (noise.mean(0) / typical).sqrt()
        )


def on_two_scales(parts: Sequence[tuple[RegressionPredictive, bool]], most_log_width: float) -> TwoScalePredictive:
    """The mixture of predictions of y, and of log y where the second value is true; members count alike.

    No logarithm's width is above `most_log_width`: the mean of exp of a very wide one would be beyond all numbers.
    """
    each = []
    dofs: dict[bool, float | None] = {}
    for predictive, is_log in parts:
        loc = predictive.means.double()
        noise = predictive.noise.diagonal(dim1=-2, dim2=-1).sqrt()[:, None, :].to(loc)
        noise = (noise if predictive.row_scale is None else noise * predictive.row_scale.to(loc)).expand_as(loc)
        widening = torch.ones_like(loc)
        if predictive.inflation is not None:
            widening = predictive.inflation.to(loc).sqrt()[..., None]
        if is_log:
            noise = noise.clamp_max(most_log_width)
            widening = torch.minimum(widening, most_log_width / noise)
        dofs[is_log] = predictive.dof
        each.append((loc, noise, widening, torch.full_like(loc, float(is_log))))
    loc, noise, widening, in_log = (torch.cat(values) for values in zip(*each, strict=True))
    return TwoScalePredictive(OnTwoScales(loc, noise, widening, in_log, dofs.get(False), dofs.get(True)))
