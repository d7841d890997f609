"""Likelihoods of counts 0, 1, 2, …, of grades, and of yes or no."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor
from torch.nn import functional

from bali.predictive import bounded_families
from bali.predictive.bounded_families import YesNo
from bali.predictive.categorical import class_indices
from bali.predictive.families import Family
from bali.predictive.family_predictive import FamilyPredictive
from bali.predictive.likelihood import LARGEST_LOG_SHAPE, FamilyLikelihood, Likelihood, exp, with_gradient
from bali.predictive.mixtures import ClassPredictive
from bali.predictive.predictive_base import Predictive
from bali.predictive.target_checks import columns_for, n_columns, refuse


class _Counts(FamilyLikelihood):
    def check(self, y: Tensor) -> None:
        bad = ~((y >= 0) & (y == y.floor()) & y.isfinite())
        refuse(bad, y, f"{type(self).__name__} needs counts 0, 1, 2, …")


class Poisson(_Counts):
    """Counts whose variance is their mean. Outputs: D logarithms of means."""

    def family(self, z: Tensor) -> Family:
        return bounded_families.Poisson(exp(z))


class NegativeBinomial(_Counts):
    """Counts with variance mean + mean²/r. Outputs: D logarithms of means, then D logarithms of r."""

    n_parameters: ClassVar[int] = 2

    def family(self, z: Tensor) -> Family:
        log_mean, log_total = self.parts(z)
        return bounded_families.NegativeBinomial(exp(log_mean), exp(log_total, LARGEST_LOG_SHAPE))


class ZeroInflatedNegativeBinomial(_Counts):
    """A negative binomial with additional zeros. Outputs as of `NegativeBinomial`, then D logits of an additional zero."""

    n_parameters: ClassVar[int] = 3

    def family(self, z: Tensor) -> Family:
        log_mean, log_total, logit = self.parts(z)
        counts = bounded_families.NegativeBinomial(exp(log_mean), exp(log_total, LARGEST_LOG_SHAPE))
        return bounded_families.ZeroInflated(logit, counts)


# --- grades, yes or no ------------------------------------------------------------------------------------------------


class Ordinal(Likelihood):
    """Grades 0 < 1 < … < P of P outputs, by cumulative logits: P(y ≤ k) = sigmoid(c_k).

    The first output is c₀; each of the others is the distance to the next cutpoint, by softplus. y holds grades.
    """

    def n_outputs(self, y: Tensor) -> int:
        return max(int(y.max()), 1)

    def targets(self, y: Tensor, z: Tensor) -> Tensor:
        return class_indices(self, y, z, z.shape[-1] + 1)

    def log_probabilities(self, z: Tensor) -> Tensor:
        """Of all grades, (..., P + 1)."""
        cut = torch.cat([z[..., :1], functional.softplus(z[..., 1:])], -1).cumsum(-1)
        below, above = functional.logsigmoid(cut), functional.logsigmoid(-cut)
        # σ(c_k) − σ(c_{k−1}) = σ(c_k) σ(−c_{k−1}) (1 − e^−gap), and 1 − e^−softplus(z) = σ(z)
        inner = below[..., 1:] + above[..., :-1] + functional.logsigmoid(z[..., 1:])
        return torch.cat([below[..., :1], inner, above[..., -1:]], -1)

    def evaluate(self, z: Tensor, y: Tensor, noise_factor: Tensor | None = None) -> tuple[Tensor, Tensor]:
        return with_gradient(lambda exact: self.log_probabilities(exact).gather(-1, y.unsqueeze(-1)).squeeze(-1), z)

    def predictive(
        self, z: Tensor, noise: Tensor | None = None, inflation: Tensor | None = None, dof: float | None = None
    ) -> Predictive:
        return ClassPredictive(self.log_probabilities(z).exp())


class Bernoulli(Likelihood):
    """Yes or no by the logistic function, for one label or for many independent ones; y holds 0 and 1."""

    def n_outputs(self, y: Tensor) -> int:
        return n_columns(y)

    def targets(self, y: Tensor, z: Tensor) -> Tensor:
        y = columns_for(y, z, z.shape[-1])
        refuse((y != 0) & (y != 1), y, "Bernoulli needs targets 0 and 1")
        return y.to(z.dtype)

    def evaluate(self, z: Tensor, y: Tensor, noise_factor: Tensor | None = None) -> tuple[Tensor, Tensor]:
        log_prob = -functional.binary_cross_entropy_with_logits(z, y.expand_as(z), reduction="none").sum(-1)
        return log_prob, y - z.sigmoid()

    def predictive(
        self, z: Tensor, noise: Tensor | None = None, inflation: Tensor | None = None, dof: float | None = None
    ) -> Predictive:
        """Of one label two classes; of many, numbers 0 and 1 whose means are the labels' probabilities."""
        if z.shape[-1] > 1:
            return FamilyPredictive(YesNo(z))
        p = z.sigmoid()
        return ClassPredictive(torch.cat([1 - p, p], -1))
