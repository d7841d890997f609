"""Adam as one would use it with care: of three rates the best on validation rows, stopped early, weights averaged.

All comes from one run for each rate: at every score, the weights and their moving averages with decays .95 and .99 are
candidates, and the best of all scores is kept.
"""

from __future__ import annotations

import copy
import math
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn
from torch.nn import functional

from bali.training.rules import steps_between_scores
from bali_benchmarks.networks.task_rows import Pair

RATES = (3e-4, 1e-3, 3e-3)
DECAYS = (0.95, 0.99)
#: Scores without a gain that end a run; regressions go on gaining for long, and their steps are cheap.
PATIENCE, PATIENCE_REGRESSION = 5, 40
#: Scores that end a run in any case.
MOST_SCORES, MOST_SCORES_REGRESSION = 100, 200
_AT_ONCE = 1000


@dataclass(frozen=True)
class AdamSettings:
    batch: int
    is_regression: bool
    seed: int
    limit: int | None = None  # another number of scores that ends a run

    @property
    def most_scores(self) -> int:
        usual = MOST_SCORES_REGRESSION if self.is_regression else MOST_SCORES
        return usual if self.limit is None else self.limit

    @property
    def patience(self) -> int:
        return PATIENCE_REGRESSION if self.is_regression else PATIENCE


@dataclass(frozen=True)
class AdamRun:
    """The best point of a run."""

    score: float  # mean negative log-likelihood of the validation rows
    network: nn.Module
    rate: float
    decay: float  # 0 where weights are not averaged
    best_step: int
    steps: int
    best_seconds: float = 0.0  # of the processor, until then


def best_of_rates(
    make: Callable[[], nn.Module], train: Pair, validation: Pair, settings: AdamSettings
) -> tuple[AdamRun, int]:
    """The best run, and the steps of all."""
    runs = [adam_run(make(), train, validation, rate, settings) for rate in RATES]
    return min(runs, key=lambda run: run.score), sum(run.steps for run in runs)


def adam_run(network: nn.Module, train: Pair, validation: Pair, rate: float, settings: AdamSettings) -> AdamRun:
    x, y = train
    averages = {decay: copy.deepcopy(network) for decay in DECAYS}
    candidates = {0.0: network} | averages
    optimizer = torch.optim.Adam(network.parameters(), lr=rate)
    generator = torch.Generator().manual_seed(settings.seed)
    between = steps_between_scores(len(x), settings.batch)
    best, best_number, number, step = AdamRun(math.inf, network, rate, 0.0, 0, 0), 0, 0, 0
    start = time.process_time()
    while True:
        for index in torch.split(torch.randperm(len(x), generator=generator), settings.batch):
            network.train()
            optimizer.zero_grad()
            torch.autograd.backward(_loss(network(x[index]), y[index], settings.is_regression))
            optimizer.step()
            step += 1
            for decay, average in averages.items():
                _take_in(average, network, 1.0 - decay)
            if step % between:
                continue
            number += 1
            for decay, candidate in candidates.items():
                score = validation_score(candidate, validation, settings.is_regression)
                if score < best.score:
                    so_far = time.process_time() - start
                    best, best_number = AdamRun(score, copy.deepcopy(candidate), rate, decay, step, step, so_far), number
            if number >= settings.most_scores or number - best_number >= settings.patience:
                return replace(best, steps=step)


def validation_score(network: nn.Module, rows: Pair, is_regression: bool) -> float:
    """Mean negative log-likelihood; a regression's noise is that of these rows."""
    z = outputs(network, rows[0])
    loss = float(_loss(z, rows[1], is_regression))
    return 0.5 * (math.log(2 * math.pi * max(loss, 1e-12)) + 1) if is_regression else loss


@torch.no_grad()
def outputs(network: nn.Module, x: Tensor) -> Tensor:
    network.eval()
    return torch.cat([network(rows) for rows in torch.split(x, _AT_ONCE)])


def _loss(z: Tensor, y: Tensor, is_regression: bool) -> Tensor:
    if is_regression:
        return functional.mse_loss(z, y)
    return functional.cross_entropy(z.reshape(-1, z.shape[-1]), y.reshape(-1))


@torch.no_grad()
def _take_in(average: nn.Module, network: nn.Module, share: float) -> None:
    """Parameters, and the running statistics of norms."""
    torch._foreach_lerp_(list(average.parameters()), list(network.parameters()), share)
    for mean, new in zip(average.buffers(), network.buffers(), strict=True):
        if mean.is_floating_point() and bool(mean.isfinite().all()):
            mean.lerp_(new, share)
        else:
            mean.copy_(new)
