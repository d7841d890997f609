"""Predictions of rows by the members that did not train on them.

Stacked members are C candidates × F folds (candidates outer). Each fold has its own held-out rows, and only those are
predicted by its members. Where all folds hold out the same rows, these are predicted by the mixture of all.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from bali.inference.prediction import NetworkPosterior
from bali.predictive.mixtures import Predictive


class Part(NamedTuple):
    """The held-out rows of one fold, or of all."""

    predictive: Predictive
    y: Tensor
    weight: Tensor  # (n,)


@dataclass(frozen=True)
class HeldOut:
    predictive: Predictive  # components: samples outer, members inner; rows: those of the member's fold, filled up
    y: list[Tensor]  # of each fold, or once where they share them
    weight: list[Tensor]
    n_members: int
    n_folds: int

    @property
    def n_candidates(self) -> int:
        return self.n_members // self.n_folds

    def parts(self, candidates: Sequence[int]) -> list[Part]:
        """Of each fold, or of all: its rows, predicted by the mixture of these candidates."""
        samples = torch.arange(0, self.predictive.n_components, self.n_members)[:, None]
        groups = [[fold] for fold in range(self.n_folds)] if len(self.y) == self.n_folds else [list(range(self.n_folds))]
        found = []
        for folds, y, weight in zip(groups, self.y, self.weight, strict=True):
            own = samples + torch.tensor([c * self.n_folds + fold for c in candidates for fold in folds])
            found.append(Part(self.predictive.components(own.flatten()).rows(slice(len(y))), y, weight))
        return found


def predict_held_out(
    posterior: NetworkPosterior, x: Tensor, y: Tensor, weight: Tensor, masks: Tensor, n_samples: int
) -> HeldOut:
    """`masks` (F, n) marks each fold's held-out rows among rows x (n, d)."""
    rows = [mask.nonzero()[:, 0] for mask in masks]
    longest = max(len(r) for r in rows)
    # Folds of different size are filled up with repetitions, which `parts` leaves out again.
    filled = torch.stack([r[torch.arange(longest, device=r.device) % max(len(r), 1)] for r in rows])
    n_members = posterior.network.members or 1
    own = x[filled].repeat(n_members // len(rows), 1, 1)
    distinct = rows[:1] if bool((masks == masks[0]).all()) else rows
    predictive = posterior.predict(own, n_samples)
    return HeldOut(predictive, [y[r] for r in distinct], [weight[r] for r in distinct], n_members, len(rows))
