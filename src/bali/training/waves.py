"""The hidden layer of a surrogate: waves with drawn directions, and beside them a trend of single columns."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from bali.training.conditioning import Rows

#: Waves of a member, each a cosine and a sine: of all columns, and of single ones, of which every column has some.
_WAVES, _ALONE, _LEAST_ALONE = 256, 128, 8


@dataclass(frozen=True)
class Waves:
    """Directions of K members, for columns about their middle in units of their deviation."""

    together: Tensor  # (K, d, H)
    alone: Tensor  # (K, d, H'), each of one column
    middle: Tensor  # (d,)
    unit: Tensor

    @classmethod
    def drawn(cls, k: int, middle: Tensor, unit: Tensor, seed: int) -> Waves:
        """Evenly spread ones, which stand for more of them than independent draws do."""
        d = len(middle)
        engine = torch.quasirandom.SobolEngine(d, scramble=True, seed=seed)  # type: ignore[no-untyped-call]
        even = engine.draw(k * _WAVES, dtype=torch.float64).clamp(1e-9, 1.0 - 1e-9)
        drawn = torch.special.ndtri(even).reshape(k, _WAVES, d)  # points that follow each other are even among themselves
        each = 0 if d == 1 else max(_LEAST_ALONE, _ALONE // d)
        shift = torch.rand(k, d, 1, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
        lengths = torch.special.ndtri(0.5 + 0.5 * (torch.arange(each) + shift) / max(each, 1))  # (K, d, H' / d)
        # Of all columns, scales are smaller by the root of their number (see the prior).
        alone = torch.einsum("kih,ij->kijh", math.sqrt(d) * lengths, torch.eye(d, dtype=torch.float64)).mT.flatten(1, 2).mT
        return cls(drawn.mT.contiguous(), alone.contiguous(), middle, unit)

    @property
    def parts(self) -> tuple[int, int, int, int]:
        """Features of all columns, of each by itself, columns and their squares; one more, the last, is a one."""
        d = len(self.middle)
        return 2 * self.together.shape[-1], 2 * self.alone.shape[-1], d, d

    def members(self, chosen: Tensor) -> Waves:
        return Waves(self.together[chosen], self.alone[chosen], self.middle, self.unit)

    def features(self, x: Tensor, columns: Tensor) -> Tensor:
        """Of rows (n, d) with scales (K, d) of the columns, (K, n, ·): squares of each part sum to about one."""
        standard, found = (x - self.middle) / self.unit, list[Tensor]()
        for directions in (self.together, self.alone):
            angles = (standard * columns.unsqueeze(1)) @ directions
            found += [part / math.sqrt(max(angles.shape[-1], 1)) for part in (angles.cos(), angles.sin())]
        trend = torch.cat([standard, standard.square() - 1.0], -1) / math.sqrt(x.shape[-1])
        rest = torch.cat([trend, torch.ones_like(standard[:, :1])], -1)
        return torch.cat([*found, rest.expand(len(columns), *rest.shape)], -1)


class WaveRows:
    """x → rows of the regressions of all members' output layers."""

    def __init__(self, waves: Waves, columns: Tensor, n_outputs: int) -> None:
        self._waves, self._columns, self._n_outputs = waves, columns, n_outputs

    def __call__(self, x: Any) -> Rows:
        rows = x.to(self._columns) if isinstance(x, Tensor) and x.requires_grad else checked_rows(x, "x")
        if rows.shape[-1] != self._columns.shape[-1]:
            raise ValueError(f"x has {rows.shape[-1]} columns, and the model was made of {self._columns.shape[-1]}")
        features = self._waves.features(rows, self._columns)
        return Rows(features, features.new_zeros(len(features), 1, len(rows), self._n_outputs), None)


def checked_rows(values: Any, name: str) -> Tensor:
    found = torch.as_tensor(values).detach().to("cpu", torch.float64)
    found = found[:, None] if name == "y" and found.dim() == 1 else found
    if found.dim() != 2 or found.shape[1] < 1:
        raise ValueError(f"{name} must have rows and columns, got shape {tuple(found.shape)}")
    if not bool(torch.isfinite(found).all()):
        raise ValueError(f"{name} has NaN or infinite values; remove those rows")
    return found
