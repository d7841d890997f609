"""Distributions of counts 0, 1, 2, … and of yes and no."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar, Self

import torch
from torch import Tensor
from torch.nn import functional

from bali.predictive.families import Family, Support, scipy_special, standard_gamma


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
