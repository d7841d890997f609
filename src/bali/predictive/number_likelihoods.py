"""Likelihoods of numbers: real, positive, shares between 0 and 1, counts 0, 1, 2, …; of grades, and of yes or no."""

from __future__ import annotations

import math
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn import functional

from bali.predictive import bounded_families, families
from bali.predictive.bounded_families import YesNo
from bali.predictive.categorical import class_indices
from bali.predictive.families import Family
from bali.predictive.family_predictive import FamilyPredictive
from bali.predictive.likelihood import LARGEST_LOG_SHAPE, FamilyLikelihood, Likelihood, exp, with_gradient
from bali.predictive.mixtures import ClassPredictive
from bali.predictive.predictive_base import Predictive
from bali.predictive.target_checks import columns_for, n_columns, refuse


class _Real(FamilyLikelihood):
    def check(self, y: Tensor) -> None:
        refuse(~y.isfinite(), y, f"{type(self).__name__} needs finite numbers")


class _Positive(FamilyLikelihood):
    def check(self, y: Tensor) -> None:
        refuse(~((y > 0) & y.isfinite()), y, f"{type(self).__name__} needs positive numbers")


class GaussianByRow(_Real):
    """A Gaussian whose noise depends on the inputs. Outputs: D means, then D logarithms of standard deviations.

    With `correlated=True` the noise of a row has a full covariance L Lᵀ. The D(D − 1)/2 outputs that follow are the entries
    of L below its diagonal, row by row, in units of the standard deviation on the same row's diagonal.
    """

    n_parameters: ClassVar[int] = 2

    def __init__(self, correlated: bool = False) -> None:
        self.correlated = correlated

    def n_outputs(self, y: Tensor) -> int:
        d = n_columns(y)
        return 2 * d + d * (d - 1) // 2 if self.correlated else 2 * d

    def n_targets(self, n_outputs: int) -> int:
        if not self.correlated:
            return super().n_targets(n_outputs)
        d = (math.isqrt(9 + 8 * n_outputs) - 3) // 2  # 2D + D(D − 1)/2 outputs
        if d < 1 or d * (d + 3) // 2 != n_outputs:
            raise ValueError(f"{self!r} needs D(D + 3)/2 outputs for D columns of y; the network has {n_outputs}")
        return d

    def family(self, z: Tensor) -> families.Family:
        if not self.correlated:
            loc, log_scale = self.parts(z)
            return families.Normal(loc, exp(log_scale))
        d = self.n_targets(z.shape[-1])
        scale = exp(z[..., d : 2 * d])
        row, column = torch.tril_indices(d, d, -1, device=z.device)
        unit = torch.eye(d, dtype=z.dtype, device=z.device).repeat(*z.shape[:-1], 1, 1)
        unit[..., row, column] = z[..., 2 * d :]
        return families.CorrelatedNormal(z[..., :d], unit * scale.unsqueeze(-1))


class StudentT(_Real):
    """Noise with heavy tails, of a width that depends on the inputs. Outputs: D locations, then D logarithms of scales.

    The mean needs more than one degree of freedom, the standard deviation more than two.
    """

    n_parameters: ClassVar[int] = 2

    def __init__(self, dof: float = 4.0) -> None:
        if not dof > 0:
            raise ValueError(f"StudentT needs positive degrees of freedom, got {dof}")
        self.dof = dof

    def family(self, z: Tensor) -> families.Family:
        loc, log_scale = self.parts(z)
        return families.StudentT(loc, exp(log_scale), self.dof)


class MixtureOfGaussians(_Real):
    """k Gaussians for each column of y. Outputs: D·k logits, D·k means, D·k logarithms of standard deviations."""

    def __init__(self, k: int = 3) -> None:
        if k < 1:
            raise ValueError(f"MixtureOfGaussians needs at least one Gaussian, got {k}")
        self.k = k

    def n_outputs(self, y: Tensor) -> int:
        return 3 * self.k * n_columns(y)

    def n_targets(self, n_outputs: int) -> int:
        if n_outputs % (3 * self.k) or n_outputs == 0:
            raise ValueError(f"{self!r} needs {3 * self.k} outputs for each column of y; the network has {n_outputs}")
        return n_outputs // (3 * self.k)

    def family(self, z: Tensor) -> families.Family:
        d = self.n_targets(z.shape[-1])
        logits, locs, log_scales = z.reshape(*z.shape[:-1], 3, d, self.k).unbind(-3)
        return families.NormalMixture(logits, locs, exp(log_scales))


class LogNormal(_Positive):
    """exp of a Gaussian. Outputs: D means of log y, then D logarithms of their standard deviations."""

    n_parameters: ClassVar[int] = 2

    def family(self, z: Tensor) -> families.Family:
        loc, log_scale = self.parts(z)
        return bounded_families.LogNormal(loc, exp(log_scale))


class Gamma(_Positive):
    """Outputs: D logarithms of means, then D logarithms of shapes; the relative standard deviation is shape^−½."""

    n_parameters: ClassVar[int] = 2

    def family(self, z: Tensor) -> families.Family:
        log_mean, log_shape = self.parts(z)
        return bounded_families.Gamma(exp(log_mean), exp(log_shape, LARGEST_LOG_SHAPE))


class Beta(FamilyLikelihood):
    """Shares strictly between 0 and 1. Outputs: D logits of means, then D logarithms of concentrations a + b."""

    n_parameters: ClassVar[int] = 2

    def check(self, y: Tensor) -> None:
        refuse(~((y > 0) & (y < 1)), y, "Beta needs shares strictly between 0 and 1")

    def family(self, z: Tensor) -> families.Family:
        logit, log_concentration = self.parts(z)
        logit, concentration = logit.clamp(-LARGEST_LOG_SHAPE, LARGEST_LOG_SHAPE), exp(log_concentration, LARGEST_LOG_SHAPE)
        return bounded_families.Beta(logit.sigmoid() * concentration, (-logit).sigmoid() * concentration)


# --- counts -----------------------------------------------------------------------------------------------------------


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
