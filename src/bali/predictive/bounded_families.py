"""Distributions of positive numbers, of shares between 0 and 1, of counts 0, 1, 2, … and of yes and no."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import ClassVar, Self

import torch
from torch import Tensor
from torch.nn import functional

from bali.predictive.families import Family, Normal, Support, scipy_special, standard_gamma

#: (t/scale)^shape is no larger than e to this, which float32 still holds.
_MOST_EXPONENT = 80.0


@dataclass(frozen=True)
class LogNormal(Family):
    """exp of a Gaussian with these parameters."""

    support: ClassVar[Support] = "positive"
    loc: Tensor
    scale: Tensor

    def _log(self) -> Normal:
        return Normal(self.loc, self.scale)

    def log_prob(self, y: Tensor) -> Tensor:
        return self._log().log_prob(y.log()) - y.log()

    def mean(self) -> Tensor:
        return (self.loc + 0.5 * self.scale.square()).exp()

    def variance(self) -> Tensor:
        return self.mean().square() * self.scale.square().expm1()

    def cdf(self, y: Tensor) -> Tensor:
        return self._log().cdf(y.clamp_min(0).log())

    def log_cdf(self, y: Tensor) -> Tensor:
        return log_ndtr((y.log() - self.loc) / self.scale)

    def log_survival(self, y: Tensor) -> Tensor:
        return log_ndtr((self.loc - y.log()) / self.scale)

    def reach(self) -> tuple[Tensor, Tensor]:
        return self.loc, self.scale

    def sample(self, generator: torch.Generator | None) -> Tensor:
        return self._log().sample(generator).exp()

    def tempered(self, power: float) -> Self:
        return replace(self, scale=self.scale / math.sqrt(power))

    def affine(self, scale: Tensor, shift: Tensor) -> Self:
        _check_no_shift(self, shift)
        return replace(self, loc=self.loc + scale.log())


@dataclass(frozen=True)
class Gamma(Family):
    """With this mean and variance mean²/shape."""

    support: ClassVar[Support] = "positive"
    expected: Tensor
    shape: Tensor

    def log_prob(self, y: Tensor) -> Tensor:
        a, ratio = self.shape, y / self.expected
        return a * (ratio.log() - ratio) + a * a.log() - a.lgamma() - y.log()

    def mean(self) -> Tensor:
        return self.expected

    def variance(self) -> Tensor:
        return self.expected.square() / self.shape

    def cdf(self, y: Tensor) -> Tensor:
        return torch.special.gammainc(self.shape, self.shape * y.clamp_min(0) / self.expected)

    def reach(self) -> tuple[Tensor, Tensor]:
        return self.expected.log(), self.shape.rsqrt() + 1 / self.shape

    def sample(self, generator: torch.Generator | None) -> Tensor:
        return standard_gamma(self.shape, generator) * self.expected / self.shape

    def tempered(self, power: float) -> Self:
        return replace(self, shape=self.shape * power)

    def affine(self, scale: Tensor, shift: Tensor) -> Self:
        _check_no_shift(self, shift)
        return replace(self, expected=self.expected * scale)


@dataclass(frozen=True)
class Weibull(Family):
    """P(y > t) = exp(−(t/scale)^shape)."""

    support: ClassVar[Support] = "positive"
    scale: Tensor
    shape: Tensor

    def _log_hazard(self, y: Tensor) -> Tensor:
        """log of the cumulated hazard (y/scale)^shape."""
        return (self.shape * (y.log() - self.scale.log())).clamp_max(_MOST_EXPONENT)

    def log_prob(self, y: Tensor) -> Tensor:
        log_hazard = self._log_hazard(y)
        return self.shape.log() - y.log() + log_hazard - log_hazard.exp()

    def log_survival(self, y: Tensor) -> Tensor:
        return -self._log_hazard(y).exp()

    def log_cdf(self, y: Tensor) -> Tensor:
        return log_1m_exp(self._log_hazard(y).exp())

    def mean(self) -> Tensor:
        return self.scale * self._moment(1)

    def variance(self) -> Tensor:
        return self.scale.square() * (self._moment(2) - self._moment(1).square())

    def _moment(self, order: int) -> Tensor:
        return (1 + order / self.shape).lgamma().exp()

    def cdf(self, y: Tensor) -> Tensor:
        return -self._log_hazard(y.clamp_min(0)).exp().neg().expm1()

    def reach(self) -> tuple[Tensor, Tensor]:
        return self.scale.log(), 1 / self.shape

    def sample(self, generator: torch.Generator | None) -> Tensor:
        uniform = torch.rand(self.scale.shape, generator=generator, dtype=self.scale.dtype, device=self.scale.device)
        return self.scale * (-torch.log1p(-uniform)) ** (1 / self.shape)

    def tempered(self, power: float) -> Self:
        return replace(self, shape=self.shape * math.sqrt(power))

    def affine(self, scale: Tensor, shift: Tensor) -> Self:
        _check_no_shift(self, shift)
        return replace(self, scale=self.scale * scale)


@dataclass(frozen=True)
class Beta(Family):
    """Density ∝ y^(a − 1) (1 − y)^(b − 1)."""

    support: ClassVar[Support] = "unit"
    a: Tensor
    b: Tensor

    def log_prob(self, y: Tensor) -> Tensor:
        a, b = self.a, self.b
        return (a - 1) * y.log() + (b - 1) * torch.log1p(-y) + (a + b).lgamma() - a.lgamma() - b.lgamma()

    def mean(self) -> Tensor:
        return self.a / (self.a + self.b)

    def variance(self) -> Tensor:
        return self.mean() * (self.b / (self.a + self.b)) / (self.a + self.b + 1)

    def cdf(self, y: Tensor) -> Tensor:
        return scipy_special("betainc", self.a, self.b, y.clamp(0, 1))

    def reach(self) -> tuple[Tensor, Tensor]:
        return self.a.log() - self.b.log(), self.a.rsqrt() + 1 / self.a + self.b.rsqrt() + 1 / self.b

    def sample(self, generator: torch.Generator | None) -> Tensor:
        first, second = standard_gamma(self.a, generator), standard_gamma(self.b, generator)
        tiny = torch.finfo(self.a.dtype).tiny  # both may underflow
        return ((first + tiny) / (first + second + 2 * tiny)).clamp(tiny, 1 - torch.finfo(self.a.dtype).eps)

    def tempered(self, power: float) -> Self:
        return replace(self, a=self.a * power, b=self.b * power)


def log_1m_exp(x: Tensor) -> Tensor:
    """log(1 − exp(−x)) for x ≥ 0; at 0 that of the smallest number."""
    return x.clamp_min(torch.finfo(x.dtype).tiny).neg().expm1().neg().log()


def log_ndtr(x: Tensor) -> Tensor:
    """log of the Gaussian's distribution function. Far out, torch's has the wrong gradient; there, the tail's expansion."""
    is_far = x < -1e4
    near, far = torch.where(is_far, 0.0, x), torch.where(is_far, x, -1e4)
    tail = -0.5 * far.square() - far.neg().log() - 0.5 * math.log(2 * math.pi)
    return torch.where(is_far, tail, torch.special.log_ndtr(near))


def _check_no_shift(family: Family, shift: Tensor) -> None:
    if bool((shift != 0).any()):
        raise family.without("a distribution of the same kind for shifted observations")


# --- counts -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Poisson(Family):
    support: ClassVar[Support] = "counts"
    rate: Tensor

    def log_prob(self, y: Tensor) -> Tensor:
        return torch.xlogy(y, self.rate) - self.rate - (y + 1).lgamma()

    def mean(self) -> Tensor:
        return self.rate

    def variance(self) -> Tensor:
        return self.rate

    def cdf(self, y: Tensor) -> Tensor:
        whole = y.floor()
        at = torch.special.gammaincc(whole.clamp_min(0) + 1, self.rate)
        return torch.where(whole < 0, 0.0, at)

    def sample(self, generator: torch.Generator | None) -> Tensor:
        return torch.poisson(self.rate, generator)


@dataclass(frozen=True)
class NegativeBinomial(Family):
    """With this mean and variance mean + mean²/total."""

    support: ClassVar[Support] = "counts"
    expected: Tensor
    total: Tensor

    def log_prob(self, y: Tensor) -> Tensor:
        r, mu = self.total, self.expected
        binomial = (y + r).lgamma() - r.lgamma() - (y + 1).lgamma()
        # log(1 + μ/r) keeps its digits where r is much larger than μ: then it is a Poisson
        log1p = torch.log1p(mu / r)
        return binomial - r * log1p + y * ((mu / r).log() - log1p)

    def mean(self) -> Tensor:
        return self.expected

    def variance(self) -> Tensor:
        return self.expected + self.expected.square() / self.total

    def cdf(self, y: Tensor) -> Tensor:
        whole = y.floor()
        success = self.total / (self.total + self.expected)
        return torch.where(whole < 0, 0.0, scipy_special("betainc", self.total, whole.clamp_min(0) + 1, success))

    def sample(self, generator: torch.Generator | None) -> Tensor:
        return torch.poisson(standard_gamma(self.total, generator) * self.expected / self.total, generator)

    def tempered(self, power: float) -> Self:
        return replace(self, total=self.total * power)


@dataclass(frozen=True)
class ZeroInflated(Family):
    """Zero with probability sigmoid(logit), and otherwise a count of another kind, which may be zero too."""

    support: ClassVar[Support] = "counts"
    logit: Tensor
    counts: NegativeBinomial

    def log_prob(self, y: Tensor) -> Tensor:
        log_counted = functional.logsigmoid(-self.logit) + self.counts.log_prob(y)
        return torch.where(y == 0, torch.logaddexp(functional.logsigmoid(self.logit), log_counted), log_counted)

    def mean(self) -> Tensor:
        return (-self.logit).sigmoid() * self.counts.mean()

    def variance(self) -> Tensor:
        counted, mean = (-self.logit).sigmoid(), self.counts.mean()
        return counted * (self.counts.variance() + self.logit.sigmoid() * mean.square())

    def cdf(self, y: Tensor) -> Tensor:
        extra = self.logit.sigmoid()
        return torch.where(y < 0, 0.0, extra + (-self.logit).sigmoid() * self.counts.cdf(y))

    def sample(self, generator: torch.Generator | None) -> Tensor:
        counted = torch.bernoulli((-self.logit).sigmoid(), generator=generator)
        return counted * self.counts.sample(generator)

    def tempered(self, power: float) -> Self:
        return replace(self, counts=self.counts.tempered(power))


@dataclass(frozen=True)
class YesNo(Family):
    support: ClassVar[Support] = "counts"
    logit: Tensor

    def log_prob(self, y: Tensor) -> Tensor:
        return functional.logsigmoid(torch.where(y > 0.5, self.logit, -self.logit))

    def mean(self) -> Tensor:
        return self.logit.sigmoid()

    def variance(self) -> Tensor:
        return self.logit.sigmoid() * (-self.logit).sigmoid()

    def cdf(self, y: Tensor) -> Tensor:
        no = (-self.logit).sigmoid()
        return torch.where(y < 0, 0.0, torch.where(y < 1, no, 1.0))

    def sample(self, generator: torch.Generator | None) -> Tensor:
        return torch.bernoulli(self.mean(), generator=generator)

    def tempered(self, power: float) -> Self:
        return replace(self, logit=self.logit * power)
