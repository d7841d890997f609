"""Likelihoods of counts 0, 1, 2, …"""

from __future__ import annotations

from typing import ClassVar

from torch import Tensor

from bali.predictive import count_families
from bali.predictive.families import Family
from bali.predictive.family_likelihood import LARGEST_LOG_SHAPE, FamilyLikelihood, exp
from bali.predictive.target_checks import refuse


class _Counts(FamilyLikelihood):
    def check(self, y: Tensor) -> None:
        bad = ~((y >= 0) & (y == y.floor()) & y.isfinite())
        refuse(bad, y, f"{type(self).__name__} needs counts 0, 1, 2, …")


class Poisson(_Counts):
    """Counts whose variance is their mean. Outputs: D logarithms of means."""

    def family(self, z: Tensor) -> Family:
        return count_families.Poisson(exp(z))


class NegativeBinomial(_Counts):
    """Counts with variance mean + mean²/r. Outputs: D logarithms of means, then D logarithms of r."""

    n_parameters: ClassVar[int] = 2

    def family(self, z: Tensor) -> Family:
        log_mean, log_total = self.parts(z)
        return count_families.NegativeBinomial(exp(log_mean), exp(log_total, LARGEST_LOG_SHAPE))


class ZeroInflatedNegativeBinomial(_Counts):
    """A negative binomial with additional zeros. Outputs as of `NegativeBinomial`, then D logits of an additional zero."""

    n_parameters: ClassVar[int] = 3

    def family(self, z: Tensor) -> Family:
        log_mean, log_total, logit = self.parts(z)
        counts = count_families.NegativeBinomial(exp(log_mean), exp(log_total, LARGEST_LOG_SHAPE))
        return count_families.ZeroInflated(logit, counts)
