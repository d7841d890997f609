"""Distributions of one kind, one for every component, row and column: what likelihoods make of a network's outputs.

Tensors of parameters are (S, n, D), or (..., n, D) in training; y is (n, D), or broadcasts to it. Distribution functions
that torch lacks are SciPy's.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from functools import lru_cache
from typing import Any, ClassVar, Literal, Self

import torch
from torch import Tensor

from bali.conjugate.sampling import chi_square, standard_normal
from bali.predictive.predictive_base import UndefinedError

Support = Literal["real", "positive", "unit", "counts"]


@dataclass(frozen=True)
class Family(ABC):
    support: ClassVar[Support] = "real"

    def map(self, change: Callable[[Tensor], Tensor]) -> Self:
        """With all parameters changed in the same way: some rows of them, another type."""
        changed: dict[str, Any] = {}
        for field in fields(self):
            value = getattr(self, field.name)
            if isinstance(value, Tensor):
                changed[field.name] = change(value)
            elif isinstance(value, Family):
                changed[field.name] = value.map(change)
        return replace(self, **changed)

    def parameters(self) -> list[Tensor]:
        kept: list[Tensor] = []
        self.map(lambda p: kept.append(p) or p)  # type: ignore[func-returns-value]
        return kept

    @property
    def n_columns(self) -> int:
        """Of observations, D."""
        return self.parameters()[0].shape[2]

    @abstractmethod
    def log_prob(self, y: Tensor) -> Tensor:
        """Of each column, (..., n, D)."""

    def joint_log_prob(self, y: Tensor) -> Tensor:
        """Of each row, (..., n)."""
        return self.log_prob(y).sum(-1)

    def mean(self) -> Tensor:
        raise self.without("a mean")

    def variance(self) -> Tensor:
        raise self.without("a variance")

    def covariance(self) -> Tensor:
        """(..., n, D, D)"""
        return self.variance().diag_embed()

    def cdf(self, y: Tensor) -> Tensor:
        raise self.without("a distribution function, which quantiles and CRPS need")

    def reach(self) -> tuple[Tensor, Tensor]:
        """Where most of each distribution is, on the support's unbounded scale: a centre and a width, roughly."""
        like = self.parameters()[0]
        shape = (*like.shape[:2], self.n_columns)
        return like.new_zeros(shape), like.new_ones(shape)

    @abstractmethod
    def sample(self, generator: torch.Generator | None) -> Tensor:
        """One draw for each set of parameters."""

    def tempered(self, power: float) -> Self:
        """Noise with about 1/power of the variance, about the same centre."""
        raise self.without("noise of its own that a temperature could change")

    def affine(self, scale: Tensor, shift: Tensor) -> Family:
        raise self.without("a distribution of the same kind for shifted and scaled observations")

    def without(self, what: str) -> UndefinedError:
        return UndefinedError(f"{type(self).__name__} has not got {what}")


def scipy_special(name: str, *arguments: Tensor | float) -> Tensor:
    """A function of `scipy.special` of tensors; no gradients."""
    from scipy import special

    like = next(a for a in arguments if isinstance(a, Tensor))
    arrays = [a.detach().cpu().double().numpy() if isinstance(a, Tensor) else a for a in arguments]
    return torch.as_tensor(getattr(special, name)(*arrays), dtype=like.dtype, device=like.device)


def standard_gamma(shape: Tensor, generator: torch.Generator | None) -> Tensor:
    return 0.5 * chi_square(2.0 * shape, generator)


# --- all real numbers -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Normal(Family):
    loc: Tensor
    scale: Tensor

    def log_prob(self, y: Tensor) -> Tensor:
        return -0.5 * ((y - self.loc) / self.scale).square() - self.scale.log() - 0.5 * math.log(2 * math.pi)

    def mean(self) -> Tensor:
        return self.loc

    def variance(self) -> Tensor:
        return self.scale.square()

    def cdf(self, y: Tensor) -> Tensor:
        return torch.special.ndtr((y - self.loc) / self.scale)

    def reach(self) -> tuple[Tensor, Tensor]:
        return self.loc, self.scale

    def sample(self, generator: torch.Generator | None) -> Tensor:
        return self.loc + self.scale * standard_normal(self.loc.shape, self.loc, generator)

    def tempered(self, power: float) -> Self:
        return replace(self, scale=self.scale / math.sqrt(power))

    def affine(self, scale: Tensor, shift: Tensor) -> Self:
        return replace(self, loc=self.loc * scale + shift, scale=self.scale * scale)


@dataclass(frozen=True)
class StudentT(Normal):
    dof: float

    def log_prob(self, y: Tensor) -> Tensor:
        v = self.dof
        constant = math.lgamma((v + 1) / 2) - math.lgamma(v / 2) - 0.5 * math.log(v * math.pi)
        # log(1 + r²/v) of a residual r whose square may overflow
        log_ratio = 2 * ((y - self.loc) / self.scale).abs().clamp_min(torch.finfo(self.loc.dtype).tiny).log() - math.log(v)
        return constant - self.scale.log() - 0.5 * (v + 1) * torch.logaddexp(torch.zeros_like(log_ratio), log_ratio)

    def mean(self) -> Tensor:
        if self.dof <= 1:
            raise self.without(f"a mean with {self.dof:g} degrees of freedom; ask for the median")
        return self.loc

    def variance(self) -> Tensor:
        if self.dof <= 2:
            raise self.without(f"a variance with {self.dof:g} degrees of freedom; ask for quantiles")
        return self.scale.square() * self.dof / (self.dof - 2)

    def cdf(self, y: Tensor) -> Tensor:
        return _student_cdf((y - self.loc) / self.scale, self.dof)

    def sample(self, generator: torch.Generator | None) -> Tensor:
        normal = standard_normal(self.loc.shape, self.loc, generator)
        chi2 = chi_square(torch.full_like(self.loc, self.dof), generator)
        return self.loc + self.scale * normal * (self.dof / chi2).sqrt()


#: Of a table in ±log(1 + |x|), which goes from −40 to 40.
_STUDENT_STEP, _STUDENT_INTERVALS = 0.005, 16_000


def _student_cdf(x: Tensor, dof: float) -> Tensor:
    """By cubic interpolation, within 1e-10: SciPy's takes five times as long, and a score asks it very often."""
    at = x.double().abs().log1p_().copysign_(x).div_(_STUDENT_STEP).add_(_STUDENT_INTERVALS / 2)
    interval = at.clamp_(0, _STUDENT_INTERVALS - 1e-9).long()
    t = at.sub_(interval)
    c0, c1, c2, c3 = (c.take(interval) for c in _student_table(dof).to(x.device))
    return c3.mul_(t).add_(c2).mul_(t).add_(c1).mul_(t).add_(c0).to(x.dtype)


@lru_cache(maxsize=16)
def _student_table(dof: float) -> Tensor:
    """Coefficients of a cubic on each interval, (4, intervals): the function and its slope are exact at the ends."""
    grid = (torch.arange(_STUDENT_INTERVALS + 1, dtype=torch.float64) - _STUDENT_INTERVALS / 2) * _STUDENT_STEP
    x = grid.abs().expm1().copysign(grid)
    f = scipy_special("stdtr", dof, x)
    density = StudentT(torch.zeros_like(x), torch.ones_like(x), dof).log_prob(x).exp()
    slope = density * grid.abs().exp() * _STUDENT_STEP
    rise, first, last = f.diff(), slope[:-1], slope[1:]
    return torch.stack([f[:-1], first, 3 * rise - 2 * first - last, first + last - 2 * rise])


@dataclass(frozen=True)
class CorrelatedNormal(Family):
    """Columns jointly, with covariance factor · factorᵀ; `log_prob` and `cdf` are those of single columns."""

    loc: Tensor
    factor: Tensor  # (S, n, D, D), lower triangular

    def marginal(self) -> Normal:
        return Normal(self.loc, self.factor.square().sum(-1).sqrt())

    def log_prob(self, y: Tensor) -> Tensor:
        return self.marginal().log_prob(y)

    def joint_log_prob(self, y: Tensor) -> Tensor:
        residual = (y - self.loc).unsqueeze(-1)
        white = torch.linalg.solve_triangular(self.factor, residual, upper=False).squeeze(-1)
        log_scales = self.factor.diagonal(dim1=-2, dim2=-1).log()
        return (-0.5 * white.square() - log_scales - 0.5 * math.log(2 * math.pi)).sum(-1)

    def mean(self) -> Tensor:
        return self.loc

    def variance(self) -> Tensor:
        return self.factor.square().sum(-1)

    def covariance(self) -> Tensor:
        return self.factor @ self.factor.mT

    def cdf(self, y: Tensor) -> Tensor:
        return self.marginal().cdf(y)

    def reach(self) -> tuple[Tensor, Tensor]:
        return self.marginal().reach()

    def sample(self, generator: torch.Generator | None) -> Tensor:
        normal = standard_normal(self.loc.shape, self.loc, generator)
        return self.loc + (self.factor @ normal.unsqueeze(-1)).squeeze(-1)

    def tempered(self, power: float) -> Self:
        return replace(self, factor=self.factor / math.sqrt(power))

    def affine(self, scale: Tensor, shift: Tensor) -> Self:
        return replace(self, loc=self.loc * scale + shift, factor=self.factor * scale[:, None])


@dataclass(frozen=True)
class NormalMixture(Family):
    """A mixture of k Gaussians for each number; parameters are (S, n, D, k)."""

    logits: Tensor
    locs: Tensor
    scales: Tensor

    def _each(self) -> Normal:
        return Normal(self.locs, self.scales)

    def _average(self, values: Tensor) -> Tensor:
        return (self.logits.softmax(-1) * values).sum(-1)

    def log_prob(self, y: Tensor) -> Tensor:
        return (self.logits.log_softmax(-1) + self._each().log_prob(y.unsqueeze(-1))).logsumexp(-1)

    def mean(self) -> Tensor:
        return self._average(self.locs)

    def variance(self) -> Tensor:
        return self._average(self.scales.square() + (self.locs - self.mean().unsqueeze(-1)).square())

    def cdf(self, y: Tensor) -> Tensor:
        return self._average(self._each().cdf(y.unsqueeze(-1)))

    def reach(self) -> tuple[Tensor, Tensor]:
        return self.mean(), self.variance().sqrt()

    def sample(self, generator: torch.Generator | None) -> Tensor:
        p = self.logits.softmax(-1)
        which = torch.multinomial(p.reshape(-1, p.shape[-1]), 1, generator=generator).reshape(*p.shape[:-1], 1)
        loc, scale = (values.gather(-1, which).squeeze(-1) for values in (self.locs, self.scales))
        return Normal(loc, scale).sample(generator)

    def tempered(self, power: float) -> Self:
        return replace(self, scales=self.scales / math.sqrt(power))

    def affine(self, scale: Tensor, shift: Tensor) -> Self:
        return replace(self, locs=self.locs * scale[:, None] + shift[:, None], scales=self.scales * scale[:, None])
