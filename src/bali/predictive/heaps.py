"""Counts of which some are reported more often than a smooth law has it: ten and twelve visits rather than eleven."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar, Self

import torch
from torch import Tensor

from bali.predictive.families import Family, Support

#: Rows of each count that are as expected, which a factor is pulled to one by.
_AS_EXPECTED = 20.0


@dataclass(frozen=True)
class Heaped(Family):
    """A family of counts with the probabilities of 0, 1, 2, … times these factors, and of all that follow times one."""

    support: ClassVar[Support] = "counts"
    counts: Family
    log_total: Tensor  # what probabilities then sum to, (S, n, D)
    factors: tuple[float, ...]

    @classmethod
    def of(cls, counts: Family, factors: tuple[float, ...]) -> Self:
        exact = cls(counts.map(lambda p: p.double()), torch.zeros(()), factors)
        return cls(counts, exact._added(0).log1p().to(counts.parameters()[0].dtype), factors)

    def _changes(self) -> Iterator[tuple[int, Tensor]]:
        """Counts k and (factor − 1) p(k)."""
        like = self.counts.parameters()[0]
        for k, factor in enumerate(self.factors):
            at = torch.tensor(float(k), dtype=like.dtype, device=like.device)
            yield k, (factor - 1.0) * self.counts.log_prob(at).exp()

    def _added(self, power: int) -> Tensor:
        """Σ k to this power times the changes."""
        return torch.zeros_like(self.counts.mean()) + sum(k**power * change for k, change in self._changes())

    @cached_property
    def _added_below(self) -> Tensor:
        """The changes of all counts below 0, 1, …, (k + 1, S, n, D): a quantile asks for the distribution function often."""
        none = torch.zeros_like(self.counts.mean())
        return torch.stack([none, *(none + change for _, change in self._changes())]).cumsum(0)

    def log_prob(self, y: Tensor) -> Tensor:
        return self.counts.log_prob(y) + self._factor(y).log() - self.log_total

    def _factor(self, y: Tensor) -> Tensor:
        every = torch.tensor([*self.factors, 1.0], dtype=y.dtype, device=y.device)
        return every[y.clamp(0, len(self.factors)).long()]

    def mean(self) -> Tensor:
        return (self.counts.mean() + self._added(1)) / self.log_total.exp()

    def variance(self) -> Tensor:
        squares = self.counts.variance() + self.counts.mean().square() + self._added(2)
        return squares / self.log_total.exp() - self.mean().square()

    def cdf(self, y: Tensor) -> Tensor:
        below = (y.floor() + 1).clamp(0, len(self.factors)).long()
        added = self._added_below.gather(0, below.expand(1, *self.log_total.shape))[0]
        return ((self.counts.cdf(y) + added) / self.log_total.exp()).clamp(0.0, 1.0)

    def sample(self, generator: torch.Generator | None) -> Tensor:
        """Draws of the family, of which each is kept with a probability in proportion to its factor."""
        most = max(1.0, *self.factors)
        found = torch.zeros_like(self.log_total)
        left = torch.ones_like(found, dtype=torch.bool)
        while bool(left.any()):
            found = torch.where(left, self.counts.sample(generator), found)
            chance = torch.rand(found.shape, generator=generator, dtype=found.dtype, device=found.device)
            left &= chance * most > self._factor(found)
        return found

    def tempered(self, power: float) -> Self:
        return self.of(self.counts.tempered(power), self.factors)


def heap_factors(p: Tensor, weight: Tensor, observed: Tensor, n_steps: int = 100) -> tuple[float, ...]:
    """Factors of the first k counts with which rows expect as many of each as there are.

    p (n, k) are the rows' probabilities of them, `weight` (n,) counts rows, and `observed` (k,) is how many there are.
    """
    factors = torch.ones_like(observed)
    for _ in range(n_steps):
        reweighed = p * factors
        expected = weight @ (reweighed / (1.0 + (reweighed - p).sum(1, keepdim=True)))
        factors = factors * (observed + _AS_EXPECTED) / (expected + _AS_EXPECTED)
    return tuple(factors.tolist())
