"""Every likelihood of numbers beside SciPy's distribution for the same outputs."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from scipy import integrate, special, stats
from torch import Tensor, distributions

from bali.predictive import likelihoods
from bali.predictive.likelihood import FamilyLikelihood, Likelihood
from support.oracles import Array

N_COMPONENTS, N_ROWS = 4, 5


class Mixed:
    """A mixture of SciPy's distributions, by its definitions."""

    def __init__(self, weights: Sequence[float] | Array, parts: Sequence[Any]) -> None:
        self.weights, self.parts = np.asarray(weights), parts
        self.is_discrete = any(_is_discrete(part) for part in parts)

    def _average(self, values: Sequence[Any]) -> Any:
        return sum(w * v for w, v in zip(self.weights, values, strict=True))

    def pdf(self, y: Any) -> Any:
        return self._average([np.exp(log_density(part, y)) for part in self.parts])

    def logpdf(self, y: Any) -> Any:
        logs = [math.log(w) + log_density(part, y) for w, part in zip(self.weights, self.parts, strict=True)]
        return special.logsumexp(logs, axis=0)

    def cdf(self, y: Any) -> Any:
        return self._average([part.cdf(y) for part in self.parts])

    def mean(self) -> float:
        return float(self._average([part.mean() for part in self.parts]))

    def var(self) -> float:
        second = self._average([part.var() + part.mean() ** 2 for part in self.parts])
        return float(second - self.mean() ** 2)

    def crps(self, y: float, low: float, high: float) -> float:
        """∫ (F − 1{y ≤ t})² dt, where almost everything is between `low` and `high`."""
        if self.is_discrete:
            k = np.arange(max(high, y) + 1)
            return float(((self.cdf(k) - (y <= k)) ** 2).sum())
        ways = [np.geomspace(1e-9, 1, 24) * (end - y) + y for end in (low, high)]
        points = np.unique(np.concatenate([*ways, [y]]))
        total = 0.0
        for a, b in pairwise(points):
            seen = float(y < b)
            total += integrate.quad(lambda t, seen=seen: (self.cdf(t) - seen) ** 2, a, b, epsabs=1e-11, epsrel=1e-10)[0]
        return total


def _is_discrete(distribution: Any) -> bool:
    return getattr(distribution, "is_discrete", False) or hasattr(getattr(distribution, "dist", None), "pmf")


def log_density(distribution: Any, y: Any) -> Any:
    if isinstance(distribution, Mixed):
        return distribution.logpdf(y)
    with np.errstate(divide="ignore"):
        return distribution.logpmf(y) if _is_discrete(distribution) else distribution.logpdf(y)


@dataclass(frozen=True)
class Case:
    likelihood: FamilyLikelihood | Likelihood
    n_outputs: int
    #: SciPy's distribution of every column, from the outputs of a row.
    columns: Callable[[Array], list[Any]]
    #: Whether columns depend on each other: then only single columns are compared.
    is_joint: bool = False
    tempers: bool = True
    #: Of the outputs that are tried.
    centre: tuple[float, ...] = (0.0,)

    @property
    def n_columns(self) -> int:
        return len(self.columns(np.zeros(self.n_outputs)))

    def outputs(self, seed: int = 0) -> Tensor:
        generator = torch.Generator().manual_seed(seed)
        normal = torch.randn(N_COMPONENTS, N_ROWS, self.n_outputs, generator=generator, dtype=torch.float64)
        return normal + torch.tensor(self.centre, dtype=torch.float64)

    def observations(self, seed: int = 1) -> Tensor:
        """(n, D), drawn by SciPy from distributions of other outputs."""
        rng = np.random.default_rng(seed)
        z = self.outputs(seed)[0].numpy()
        drawn = [[_drawn(column, rng) for column in self.columns(row)] for row in z]
        return torch.tensor(drawn, dtype=torch.float64)

    def mixture(self, z: Tensor, row: int, column: int) -> Mixed:
        weights = np.full(len(z), 1 / len(z))
        return Mixed(weights, [self.columns(component[row].numpy())[column] for component in z])


def _drawn(distribution: Any, rng: np.random.Generator) -> float:
    if isinstance(distribution, Mixed):
        return _drawn(distribution.parts[rng.choice(len(distribution.parts), p=distribution.weights)], rng)
    return float(distribution.rvs(random_state=rng))


def _softmax(z: Array) -> Array:
    return np.exp(z) / np.exp(z).sum()


def _correlated(z: Array) -> list[Any]:
    """Two columns: L has rows (s₀, 0) and (s₁ z₄, s₁)."""
    scale = np.exp(z[2:4])
    return [stats.norm(z[0], scale[0]), stats.norm(z[1], scale[1] * math.hypot(1.0, z[4]))]


def _gaussians(z: Array) -> list[Any]:
    logits, means, scales = z.reshape(3, 2, 2)
    parts = [[stats.norm(m, math.exp(s)) for m, s in zip(means[d], scales[d], strict=True)] for d in range(2)]
    return [Mixed(_softmax(logits[d]), parts[d]) for d in range(2)]


def _negative_binomial(log_mean: float, log_total: float) -> Any:
    mean, total = math.exp(log_mean), math.exp(log_total)
    return stats.nbinom(total, total / (total + mean))


def _zero_inflated(z: Array) -> list[Any]:
    extra = float(special.expit(z[2]))
    return [Mixed([extra, 1 - extra], [stats.bernoulli(0.0), _negative_binomial(z[0], z[1])])]


def _beta(logit: float, log_concentration: float) -> Any:
    concentration = math.exp(log_concentration)
    return stats.beta(special.expit(logit) * concentration, special.expit(-logit) * concentration)


def _gamma(log_mean: float, log_shape: float) -> Any:
    return stats.gamma(math.exp(log_shape), scale=math.exp(log_mean - log_shape))


def _own_gumbel(z: Tensor) -> distributions.Distribution:
    return distributions.Gumbel(z[..., 0], z[..., 1].exp())


def _own_gamma(z: Tensor) -> distributions.Distribution:
    return distributions.Gamma(z[..., 0].exp(), z[..., 1].exp())


CASES: dict[str, Case] = {
    "Gaussian by row": Case(
        likelihoods.GaussianByRow(), 4, lambda z: [stats.norm(z[0], math.exp(z[2])), stats.norm(z[1], math.exp(z[3]))]
    ),
    "Gaussian by row, correlated": Case(likelihoods.GaussianByRow(correlated=True), 5, _correlated, is_joint=True),
    "Student-t": Case(likelihoods.StudentT(5.0), 2, lambda z: [stats.t(5.0, z[0], math.exp(z[1]))]),
    "mixture of Gaussians": Case(likelihoods.MixtureOfGaussians(2), 12, _gaussians),
    "log-normal": Case(
        likelihoods.LogNormal(), 2, lambda z: [stats.lognorm(math.exp(z[1]), scale=math.exp(z[0]))], centre=(0.0, -1.0)
    ),
    "gamma": Case(likelihoods.Gamma(), 2, lambda z: [_gamma(*z)]),
    "beta": Case(likelihoods.Beta(), 2, lambda z: [_beta(*z)], centre=(0.0, 3.0)),
    "Poisson": Case(likelihoods.Poisson(), 2, lambda z: [stats.poisson(math.exp(v)) for v in z], tempers=False),
    "negative binomial": Case(likelihoods.NegativeBinomial(), 2, lambda z: [_negative_binomial(*z)]),
    "zero-inflated negative binomial": Case(likelihoods.ZeroInflatedNegativeBinomial(), 3, _zero_inflated),
    "labels": Case(likelihoods.Bernoulli(), 3, lambda z: [stats.bernoulli(special.expit(v)) for v in z]),
    "Weibull": Case(likelihoods.Weibull(), 2, lambda z: [stats.weibull_min(math.exp(z[1]), scale=math.exp(z[0]))]),
    "log-normal duration": Case(
        likelihoods.LogNormalDuration(),
        2,
        lambda z: [stats.lognorm(math.exp(z[1]), scale=math.exp(z[0]))],
        centre=(0.0, -1.0),
    ),
    "a known distribution of torch": Case(
        likelihoods.from_distribution(_own_gamma, 2), 2, lambda z: [stats.gamma(math.exp(z[0]), scale=math.exp(-z[1]))]
    ),
    "another distribution of torch": Case(
        likelihoods.from_distribution(_own_gumbel, 2), 2, lambda z: [stats.gumbel_r(z[0], math.exp(z[1]))], tempers=False
    ),
}
