"""A stream whose law changes: how likely recent batches are under the model, beside rows that it is known to fit."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import Tensor

from bali.predictive.predictive_base import Predictive

#: Of a cumulative sum of standard scores: what the score may be worse by without being added, and how much is too much.
#: With these a stream that does not change is called changed about once in a thousand batches.
_ALLOWANCE, _LIMIT = 0.5, 5.0
#: Standard errors that the rows to compare with may be luckier than others.
_DOUBT = 2.0

#: Of a stream that a model learns from: batches that are looked at, the last of them, and the fewest to compare with.
WATCHED, _RECENT, _FEWEST = 100, 10, 20
#: There a single batch counts for so many standard deviations at most, and several have to be unlikely one after the other.
_MOST, _STREAM_LIMIT = 3.0, 8.0


class Predicts(Protocol):
    def __call__(self, x: Any) -> Predictive: ...


@dataclass
class DriftWatch:
    """Tells when batches of a stream are less likely than they should be.

    `predict` is `fitted.predict` or `model.pred_dist`; x and y are rows that the model fits but was not trained on. Every
    batch's mean log predictive density is compared with theirs, and what it lacks is added up: a small change is found after
    some batches, a large one at once. The more rows to compare with, the smaller the change that can be found.
    """

    predict: Predicts
    x: Any
    y: Any
    sum: float = field(default=0.0, init=False)
    scores: list[float] = field(default_factory=list, init=False)  # of the batches: standard errors that they lack

    def __post_init__(self) -> None:
        known = self._log_density(self.x, self.y)
        if len(known) < 10:
            raise ValueError(f"{len(known)} rows tell too little of how likely rows are; give ten or more")
        self._deviation = float(known.std())
        # How likely rows are is itself known only so well, and an error in it would add up.
        self._least = float(known.mean()) - _DOUBT * self._deviation / math.sqrt(len(known))

    def _log_density(self, x: Any, y: Any) -> Tensor:
        return self.predict(x).log_prob(torch.as_tensor(y)).double()

    def update(self, x: Any, y: Any) -> bool:
        """Take in a batch. Whether the stream has drifted by now."""
        found = self._log_density(x, y)
        error = self._deviation / math.sqrt(len(found))
        self.scores.append((self._least - float(found.mean())) / max(error, 1e-300))
        self.sum = max(0.0, self.sum + self.scores[-1] - _ALLOWANCE)
        return self.drifted

    @property
    def drifted(self) -> bool:
        return self.sum > _LIMIT

    def __str__(self) -> str:
        if not self.scores:
            return "no batches yet"
        state = "has drifted: fit again, with as_prior(forget=...)" if self.drifted else "is as it was"
        return f"the stream {state}; the last batch is {self.scores[-1]:.1f} standard errors less likely than it should be"


def has_drifted(losses: Sequence[float]) -> bool:
    """Whether the last of a stream's batches are less likely than those before; losses are from before each was learnt."""
    known, recent = losses[:-_RECENT], losses[-_RECENT:]
    if len(known) < _FEWEST:
        return False
    mean, deviation = statistics.fmean(known), max(statistics.stdev(known), 1e-300)
    total = 0.0
    for loss in recent:
        total = max(0.0, total + min((loss - mean) / deviation, _MOST) - _ALLOWANCE)
    return total > _STREAM_LIMIT
