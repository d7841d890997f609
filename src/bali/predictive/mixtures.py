"""Predictive distributions: mixtures over samples of the network's weights.

Components come first: S components, n rows, D outputs or classes. The mixture is never collapsed to a Gaussian;
log-probabilities and quantiles are those of the mixture itself.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from bali.conjugate import linalg
from bali.conjugate.sampling import chi_square, standard_normal
from bali.predictive.families import Family, Normal, StudentT
from bali.predictive.predictive_base import Predictive as Predictive
from bali.predictive.predictive_base import concatenate as concatenate
from bali.predictive.quantiles import crps, mixture_cdf, mixture_quantile


@dataclass(frozen=True)
class RegressionPredictive(Predictive):
    """Mixture of S Gaussians (or Student-t's) with covariances inflation · diag(r) · noise · diag(r), r the row's scale.

    `std`, quantiles and intervals are those of a new observation: the noise is included. `epistemic` is the part that
    more data would remove, `aleatoric` the noise; their sum is the variance.
    """

    means: Tensor  # (S, n, D)
    noise: Tensor  # (S or 1, D, D)
    inflation: Tensor | None = None  # (S, n): 1 + xᵀRx where the output layer's weights are integrated out
    dof: float | None = None  # Student-t components; `noise` is then their shape matrix
    row_scale: Tensor | None = None  # (n, D): noise that depends on the row

    @property
    def n_rows(self) -> int:
        return self.means.shape[1]

    @property
    def mean(self) -> Tensor:
        """(n, D)"""
        return self.means.mean(0)

    @property
    def aleatoric(self) -> Tensor:
        """Variance of the noise, (n, D)."""
        noise = (self.noise.diagonal(dim1=-2, dim2=-1).mean(0) * self._tail_factor).expand(self.n_rows, -1)
        return noise if self.row_scale is None else noise * self.row_scale.square()

    @property
    def epistemic(self) -> Tensor:
        """Variance due to uncertain weights, (n, D)."""
        spread = self.means.var(0, correction=0)
        if self.inflation is None:
            return spread
        diagonal = self.noise.diagonal(dim1=-2, dim2=-1)[:, None, :] * self._tail_factor
        widened = ((self.inflation - 1.0)[..., None] * diagonal).mean(0)
        return spread + (widened if self.row_scale is None else widened * self.row_scale.square())

    @property
    def covariance(self) -> Tensor:
        """Covariance between the outputs of a new observation, noise included, (n, D, D)."""
        centred = (self.means - self.mean).transpose(0, 1)  # (n, S, D)
        spread = centred.mT @ centred / self.means.shape[0]
        noise = (self.noise * self._tail_factor).expand(len(self.means), -1, -1)
        if self.inflation is None:
            of_rows = noise.mean(0).expand(self.n_rows, -1, -1)
        else:
            of_rows = torch.einsum("sn,sij->nij", self.inflation, noise) / len(self.means)
        if self.row_scale is not None:
            of_rows = of_rows * self.row_scale[:, :, None] * self.row_scale[:, None, :]
        return spread + of_rows

    @property
    def _tail_factor(self) -> float:
        """Variance of a Student-t over its shape; infinite for two degrees of freedom or fewer."""
        if self.dof is None:
            return 1.0
        return self.dof / (self.dof - 2.0) if self.dof > 2.0 else math.inf

    @property
    def n_components(self) -> int:
        return len(self.means)

    def components(self, index: Tensor) -> RegressionPredictive:
        noise = self.noise if len(self.noise) == 1 else self.noise[index]
        inflation = None if self.inflation is None else self.inflation[index]
        return replace(self, means=self.means[index], noise=noise, inflation=inflation)

    def with_noise(self, scale: float, dof: float | None) -> RegressionPredictive:
        """The same means with `scale` times the noise, and the tails of a Student-t with so many degrees of freedom."""
        return replace(self, noise=self.noise * scale, dof=dof)

    def component_log_prob(self, y: Tensor) -> Tensor:
        d = self.means.shape[-1]
        factor = linalg.cholesky(self.noise, "predictive noise")
        residual = self._columns(y) - self.means
        if self.row_scale is not None:
            residual = residual / self.row_scale
        white = linalg.half_solve(factor, residual.mT)  # (S, D, n)
        squared = white.square().sum(-2)
        logdet = linalg.logdet(factor)[:, None].expand_as(squared)
        if self.row_scale is not None:
            logdet = logdet + 2.0 * self.row_scale.log().sum(-1)
        if self.inflation is not None:
            squared = squared / self.inflation
            logdet = logdet + d * self.inflation.log()
        if self.dof is None:
            return -0.5 * (squared + logdet + d * math.log(2 * math.pi))
        v = self.dof
        constant = math.lgamma((v + d) / 2) - math.lgamma(v / 2) - d / 2 * math.log(v * math.pi)
        return constant - 0.5 * logdet - 0.5 * (v + d) * torch.log1p(squared / v)

    def cdf(self, y: Tensor) -> Tensor:
        """Marginal distribution functions, (n, D)."""
        return mixture_cdf(self.means, self._component_std(), self._columns(y), self.dof)

    def _quantile(self, level: float) -> Tensor:
        return mixture_quantile(self.means, self._component_std(), level, self.dof)

    def crps(self, y: Tensor) -> Tensor:
        return crps(self._marginals(), self._columns(y))

    def _marginals(self) -> Family:
        scale = self._component_std().expand_as(self.means)
        return Normal(self.means, scale) if self.dof is None else StudentT(self.means, scale, self.dof)

    def sample(self, n_samples: int, generator: torch.Generator | None = None) -> Tensor:
        s, n, d = self.means.shape
        which = torch.randint(s, (n_samples,), generator=generator, device=self.means.device)
        noise = standard_normal((n_samples, n, d), self.means, generator)
        factor = linalg.cholesky(self.noise, "predictive noise").expand(s, -1, -1)[which]
        if self.inflation is not None:
            noise = noise * self.inflation[which].sqrt()[..., None]
        if self.dof is not None:
            chi2 = chi_square(self.means.new_full((n_samples, n, 1), self.dof), generator)
            noise = noise * (self.dof / chi2).sqrt()
        noise = noise @ factor.mT
        return self.means[which] + (noise if self.row_scale is None else noise * self.row_scale)

    def rows(self, index: Any) -> RegressionPredictive:
        inflation = None if self.inflation is None else self.inflation[:, index]
        row_scale = None if self.row_scale is None else self.row_scale[index]
        return replace(self, means=self.means[:, index], inflation=inflation, row_scale=row_scale)

    def joined(self, others: Sequence[Predictive]) -> RegressionPredictive:
        parts = [self, *(p for p in others if isinstance(p, RegressionPredictive))]
        inflations = [p.inflation for p in parts if p.inflation is not None]
        inflation = torch.cat(inflations, 1) if inflations else None
        scales = [p.row_scale for p in parts if p.row_scale is not None]
        row_scale = torch.cat(scales) if scales else None
        return replace(self, means=torch.cat([p.means for p in parts], 1), inflation=inflation, row_scale=row_scale)

    def tempered(self, power: float) -> RegressionPredictive:
        return self.with_noise(1.0 / power, self.dof)

    def affine(self, scale: Tensor, shift: Tensor) -> RegressionPredictive:
        noise = self.noise * scale[:, None] * scale[None, :]
        return replace(self, means=self.means * scale + shift, noise=noise)

    def _component_std(self) -> Tensor:
        """Scale of each marginal component, (S or 1, n or 1, D)."""
        std = self.noise.diagonal(dim1=-2, dim2=-1).sqrt()[:, None, :]
        std = std if self.row_scale is None else std * self.row_scale
        return std if self.inflation is None else std * self.inflation.sqrt()[..., None]

    def _columns(self, y: Tensor) -> Tensor:
        y = y.to(self.means.dtype)
        if y.dim() == 1 and self.means.shape[-1] == 1:
            y = y[:, None]
        if y.shape != self.means.shape[1:]:
            raise ValueError(f"y has shape {tuple(y.shape)}, the prediction has {tuple(self.means.shape[1:])}")
        return y


@dataclass(frozen=True)
class ClassPredictive(Predictive):
    """Mixture of class probabilities, (S, n, C)."""

    component_probabilities: Tensor

    @property
    def n_rows(self) -> int:
        return self.component_probabilities.shape[1]

    @property
    def n_components(self) -> int:
        return len(self.component_probabilities)

    def components(self, index: Tensor) -> ClassPredictive:
        return ClassPredictive(self.component_probabilities[index])

    @property
    def probabilities(self) -> Tensor:
        """(n, C)"""
        return self.component_probabilities.mean(0)

    @property
    def mean(self) -> Tensor:
        return self.probabilities

    @property
    def std(self) -> Tensor:
        """Spread of the class probabilities over weight samples (epistemic only), (n, C)."""
        return self.component_probabilities.std(0, correction=0)

    @property
    def entropy(self) -> Tensor:
        """Total uncertainty, in nats, (n,)."""
        return _entropy(self.probabilities)

    @property
    def aleatoric(self) -> Tensor:
        """Expected entropy given the weights, (n,)."""
        return _entropy(self.component_probabilities).mean(0)

    @property
    def mutual_information(self) -> Tensor:
        """Between the class and the weights, (n,): the uncertainty that more data would remove."""
        return (self.entropy - self.aleatoric).clamp_min(0.0)

    @property
    def epistemic(self) -> Tensor:
        return self.mutual_information

    def component_log_prob(self, y: Tensor) -> Tensor:
        """log probability of class indices y under each component, (S, n)."""
        p = self.component_probabilities
        index = y.long().reshape(1, -1, 1)
        if index.shape[1] != self.n_rows:
            raise ValueError(f"y has {index.shape[1]} rows, the prediction has {self.n_rows}")
        # A probability that underflowed is reported as the smallest one that the type can hold, not as −∞.
        return p.gather(-1, index.expand(len(p), -1, -1)).squeeze(-1).clamp_min(torch.finfo(p.dtype).tiny).log()

    def sample(self, n_samples: int, generator: torch.Generator | None = None) -> Tensor:
        return torch.multinomial(self.probabilities, n_samples, replacement=True, generator=generator).T

    def tempered(self, power: float) -> ClassPredictive:
        """Every component's probabilities raised to a power and normalised: surer above 1, less sure below."""
        tiny = torch.finfo(self.component_probabilities.dtype).tiny
        return ClassPredictive((power * self.component_probabilities.clamp_min(tiny).log()).softmax(-1))

    def rows(self, index: Any) -> ClassPredictive:
        return ClassPredictive(self.component_probabilities[:, index])

    def joined(self, others: Sequence[Predictive]) -> ClassPredictive:
        return self._concatenated(others, 1)

    def mixed_with(self, others: Sequence[Predictive]) -> ClassPredictive:
        return self._concatenated(others, 0)

    def _concatenated(self, others: Sequence[Predictive], dim: int) -> ClassPredictive:
        parts = [self, *(p for p in others if isinstance(p, ClassPredictive))]
        return ClassPredictive(torch.cat([p.component_probabilities for p in parts], dim))


def _entropy(p: Tensor) -> Tensor:
    return torch.special.entr(p).sum(-1)
