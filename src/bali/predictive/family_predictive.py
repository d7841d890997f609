"""Predictions of whatever a `Family` describes: mixtures over weight samples, in float64 and some rows at a time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

import torch
from torch import Tensor

from bali.predictive.families import Family, Support
from bali.predictive.predictive_base import Predictive
from bali.predictive.quantiles import AT_ONCE, crps, family_quantile

#: Numbers that are in the support at all; others have probability zero.
_POSSIBLE: dict[Support, Callable[[Tensor], Tensor]] = {
    "real": torch.isfinite,
    "positive": lambda y: (y > 0) & y.isfinite(),
    "unit": lambda y: (y > 0) & (y < 1),
    "counts": lambda y: (y >= 0) & (y == y.floor()) & y.isfinite(),
}


@dataclass(frozen=True)
class FamilyPredictive(Predictive):
    family: Family  # parameters (S, n, D)

    @property
    def n_rows(self) -> int:
        return self.family.parameters()[0].shape[1]

    @property
    def n_components(self) -> int:
        return self.family.parameters()[0].shape[0]

    def rows(self, index: Any) -> Self:
        return replace(self, family=self.family.map(lambda p: p[:, index]))

    def components(self, index: Tensor) -> Self:
        return replace(self, family=self.family.map(lambda p: p[index]))

    def joined(self, others: Sequence[Predictive]) -> Self:
        return self._concatenated(others, 1)

    def mixed_with(self, others: Sequence[Predictive]) -> Self:
        return self._concatenated(others, 0)

    def _concatenated(self, others: Sequence[Predictive], dim: int) -> Self:
        families = [self.family, *(p.family for p in others if isinstance(p, FamilyPredictive))]
        columns = iter(zip(*(f.parameters() for f in families), strict=True))
        return replace(self, family=self.family.map(lambda _: torch.cat(next(columns), dim)))

    @property
    def mean(self) -> Tensor:
        """(n, D)"""
        return self.family.mean().mean(0)

    @property
    def aleatoric(self) -> Tensor:
        return self.family.variance().mean(0)

    @property
    def epistemic(self) -> Tensor:
        return self.family.mean().var(0, correction=0)

    @property
    def covariance(self) -> Tensor:
        """Between the columns of a new observation, (n, D, D)."""
        centred = (self.family.mean() - self.mean).transpose(0, 1)
        return self.family.covariance().mean(0) + centred.mT @ centred / self.n_components

    def component_log_prob(self, y: Tensor) -> Tensor:
        observed = self._columns(y)
        possible = _POSSIBLE[self.family.support](observed)
        safe = torch.where(possible, observed, 0.5 if self.family.support == "unit" else 1.0)
        found = self._by_rows(lambda family, rows: family.joint_log_prob(safe[rows]).mT).mT
        return torch.where(possible.all(-1), found, -torch.inf)

    def cdf(self, y: Tensor) -> Tensor:
        observed = self._columns(y)
        return self._by_rows(lambda family, rows: family.cdf(observed[rows]).mean(0))

    def cdf_bounds(self, y: Tensor) -> tuple[Tensor, Tensor]:
        at = self.cdf(y)
        return (self.cdf(y - 1), at) if self.family.support == "counts" else (at, at)

    def _quantile(self, level: float) -> Tensor:
        return self._by_rows(lambda family, _: family_quantile(family, level))

    def crps(self, y: Tensor) -> Tensor:
        return crps(self.family, self._columns(y))

    def sample(self, n_samples: int, generator: torch.Generator | None = None) -> Tensor:
        device = self.family.parameters()[0].device
        which = torch.randint(self.n_components, (n_samples,), generator=generator, device=device)
        return self.components(which).family.sample(generator)

    def tempered(self, power: float) -> Self:
        return replace(self, family=self.family.tempered(power))

    def affine(self, scale: Tensor, shift: Tensor) -> Self:
        return replace(self, family=self.family.affine(scale, shift))

    def _by_rows(self, of_part: Callable[[Family, slice], Tensor]) -> Tensor:
        """What a function makes of the rows, chunk after chunk in float64, in the parameters' own type."""
        parameters = self.family.parameters()
        per_row = sum(p[:, :1].numel() for p in parameters)
        step = max(1, AT_ONCE // max(per_row, 1))
        found = []
        for start in range(0, max(self.n_rows, 1), step):
            rows = slice(start, start + step)
            found.append(of_part(self.family.map(lambda p, rows=rows: p[:, rows].double()), rows))  # type: ignore[misc]
        return torch.cat(found).to(parameters[0].dtype)

    def _columns(self, y: Tensor) -> Tensor:
        """y as (n, D) in float64."""
        y, shape = y.double(), (self.n_rows, self.family.n_columns)
        y = y[:, None] if y.dim() == 1 and shape[1] == 1 else y
        if y.shape != shape:
            raise ValueError(f"y has shape {tuple(y.shape)}, the prediction has {shape}")
        return y
