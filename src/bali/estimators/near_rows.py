"""What the rows near to a row say: averages of their targets, how these differ, and how near the nearest one is.

A network learns one smooth function for all rows. Where rows that are alike have targets alike for reasons that no column
tells (a plant measured hour after hour), the nearest rows say more than any smooth function. They are shown to a network
beside the columns, as one more way of seeing the table that held-out rows judge.

Near is meant in a metric that is learnt: each column has a scale, so that averages of near rows' targets, each row left out
of its own average, err least. No row sees its own target: a training row is left out of its near rows, once if it was given
several times, as new rows repeat old ones too.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.spatial import cKDTree
from torch import Tensor

from bali.training.adam import Adam
from bali.training.table_fit import copies

Array = NDArray[Any]
#: Nearest rows that averages are taken of: the smaller one follows details, the larger one has less noise.
FEW, MANY = 4, 16
#: Names of the arrays in a file.
PARTS = ("near_places", "near_targets", "near_weight", "near_scales", "near_moments")
#: Of the learning of scales: rows that are near to others, rows whose targets are predicted at a step, steps, their size.
_ROWS, _BATCH, _STEPS, _RATE = 3000, 512, 60, 0.1
#: The neighbour that is a kernel's width away at first.
_TENTH = 10
#: In units of the typical distance: what is as good as equal, and what is near enough not to matter how near.
_EQUAL, _CLOSE = 1e-3, 0.1
_AT_ONCE = 4096


@dataclass(frozen=True)
class NearRows:
    """The rows of a training, at places where distances are typically 1."""

    places: Array  # (m, columns)
    targets: Array  # (m, T) at unit scale
    weight: Array  # (m,)
    scales: Array  # of each column, before which it is at unit scale
    moments: Array  # (2, 3 T + 1): mean and standard deviation of what is shown

    @classmethod
    def learn(cls, scaled: Array, targets: Array, weight: Array, seed: int) -> NearRows:
        """From columns and targets (n, T) at unit scale."""
        scales = _learnt_scales(scaled, targets, seed)
        some = scaled[:: -(-len(scaled) // _ROWS)] * scales
        distance = np.asarray(cKDTree(scaled * scales).query(some, k=range(2, min(MANY + 1, len(scaled)) + 1))[0])
        scales = scales / (float(distance.mean()) or 1.0)
        n_shown = 3 * targets.shape[1] + 1
        start = cls(scaled * scales, targets, weight, scales, np.stack([np.zeros(n_shown), np.ones(n_shown)]))
        shown = start(torch.from_numpy(scaled), torch.from_numpy(targets)).numpy()
        mean = weight @ shown / weight.sum()
        std = np.sqrt(weight @ (shown - mean) ** 2 / weight.sum())
        return cls(start.places, targets, weight, scales, np.stack([mean, np.where(std > 1e-6, std, 1.0)]))

    @property
    def n_shown(self) -> int:
        return int(self.moments.shape[1])

    def __call__(self, scaled: Tensor, targets: Tensor | None = None) -> Tensor:
        """What near rows say (n, 3 T + 1) about rows at unit scale, differentiable in them; with their `targets`, rows that
        are among the near rows themselves are left out."""
        parts = []
        for start in range(0, max(len(scaled), 1), _AT_ONCE):
            own = None if targets is None else targets[start : start + _AT_ONCE].double()
            parts.append(self._shown(scaled[start : start + _AT_ONCE].double(), own))
        return torch.cat(parts)

    def _shown(self, scaled: Tensor, own: Tensor | None) -> Tensor:
        places = scaled * self._on("scales", scaled)
        k = min(MANY, len(self.places) - 1)
        found = self._tree.query(places.detach().cpu().numpy(), k=range(1, k + (1 if own is None else 2)))[1]
        at = torch.from_numpy(found).to(scaled.device)
        weight, targets = self._on("weight", scaled)[at], self._on("targets", scaled)[at]
        distance = ((places[:, None] - self._on("places", scaled)[at]).square().sum(-1) + 1e-24).sqrt()
        if own is not None:
            itself = (distance <= 1e-9) & (targets == own[:, None]).all(-1)
            weight = torch.where(itself, self._on("_weight_without_one", scaled)[at], weight)
            order = (weight == 0.0).to(torch.int8).argsort(dim=1, stable=True)[:, :k]  # the row itself is last, and left out
            weight, distance = weight.gather(1, order), distance.gather(1, order)
            targets = targets.gather(1, order[..., None].expand(-1, -1, targets.shape[-1]))
        closeness = weight / (distance + _EQUAL)
        few, many = (_average(targets[:, :n], closeness[:, :n]) for n in (FEW, MANY))
        middle = _average(targets, weight)
        spread = _average((targets - middle[:, None]).square(), weight).sqrt()
        shown = torch.cat([few, many, spread, (distance[:, :1] + _CLOSE).log()], 1)
        mean, std = self._on("moments", scaled)
        return (shown - mean) / std

    def _on(self, name: str, like: Tensor) -> Tensor:
        return torch.as_tensor(getattr(self, name), dtype=torch.float64, device=like.device)

    @functools.cached_property
    def _tree(self) -> Any:
        return cKDTree(self.places)

    @functools.cached_property
    def _weight_without_one(self) -> Array:
        """Of a row that is left out: a row that was given several times is still there."""
        found: Array = self.weight - self.weight / copies(self.weight)
        return found

    def to_arrays(self) -> dict[str, Array]:
        return dict(zip(PARTS, (self.places, self.targets, self.weight, self.scales, self.moments), strict=True))

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, Array]) -> NearRows:
        return cls(*(arrays[name] for name in PARTS))


def _average(values: Tensor, weight: Tensor) -> Tensor:
    total = weight.sum(1).clamp_min(torch.finfo(weight.dtype).tiny)
    return (values * weight[..., None]).sum(1) / total[:, None]


def _learnt_scales(scaled: Array, targets: Array, seed: int) -> Array:
    """Of the columns, by Adam: averages of other rows' targets, weighted by exp(−distance²), should err least."""
    generator = torch.Generator().manual_seed(seed)
    some = torch.randperm(len(scaled), generator=generator)[:_ROWS]
    x, y = (torch.from_numpy(a)[some].float() for a in (scaled, targets))
    n_batch = min(_BATCH, len(x))
    first = torch.cdist(x[:n_batch], x).kthvalue(min(_TENTH + 1, len(x)), dim=1).values.square().mean()
    log_scales = torch.full((x.shape[1],), -0.5 * math.log(max(first.item(), 1e-12)))
    adam = Adam(log_scales, _RATE, (0.8, 0.95))
    for _ in range(_STEPS):
        batch = torch.randperm(len(x), generator=generator)[:n_batch]
        with torch.enable_grad():
            free = log_scales.requires_grad_()
            places = x * free.exp()
            own = places[batch]
            squares = (own.square().sum(1)[:, None] + places.square().sum(1) - 2.0 * own @ places.mT).clamp_min(0.0)
            itself = torch.zeros_like(squares, dtype=torch.bool)
            itself[torch.arange(n_batch), batch] = True
            share = torch.softmax(-squares.masked_fill(itself, math.inf), 1)
            error = (share @ y - y[batch]).square().mean()
        log_scales = log_scales.detach() + adam.step(-torch.autograd.grad(error, free)[0])
    found: Array = log_scales.double().exp().numpy()
    return found
