"""Predictions of rows by the members that did not train on them.

Stacked members are C candidates × F folds (candidates outer). Each fold has its own held-out rows, and only those are
predicted by its members.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from bali.inference import LayerwiseInference
from bali.predictive import Predictive


class Part(NamedTuple):
    """The held-out rows of one fold."""

    predictive: Predictive
    y: Tensor
    weight: Tensor  # (n,)


@dataclass(frozen=True)
class HeldOut:
    predictive: Predictive  # components: samples outer, members inner; rows: those of the member's fold, filled up
    y: list[Tensor]  # of each fold
    weight: list[Tensor]
    n_members: int

    @property
    def n_candidates(self) -> int:
        return self.n_members // len(self.y)

    def parts(self, candidates: Sequence[int]) -> list[Part]:
        """Of each fold: its rows, predicted by the mixture of these candidates."""
        samples = torch.arange(0, self.predictive.n_components, self.n_members)[:, None]
        found = []
        for fold, (y, weight) in enumerate(zip(self.y, self.weight, strict=True)):
            own = samples + torch.tensor([c * len(self.y) + fold for c in candidates])
            found.append(Part(self.predictive.components(own.flatten()).rows(slice(len(y))), y, weight))
        return found


def predict_held_out(
    inference: LayerwiseInference, x: Tensor, y: Tensor, weight: Tensor, masks: Tensor, n_samples: int
) -> HeldOut:
    """`masks` (F, n) marks each fold's held-out rows among rows x (n, d)."""
    rows = [mask.nonzero()[:, 0] for mask in masks]
    longest = max(len(r) for r in rows)
    # Folds of different size are filled up with repetitions, which `parts` leaves out again.
    filled = torch.stack([r[torch.arange(longest, device=r.device) % max(len(r), 1)] for r in rows])
    n_members = inference.network.members or 1
    own = x[filled].repeat(n_members // len(rows), 1, 1)
    return HeldOut(inference.predict(own, n_samples), [y[r] for r in rows], [weight[r] for r in rows], n_members)
