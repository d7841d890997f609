"""Rules of `bali.fit`: what a step takes in, and how long a phase waits."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import bali
from bali.training.rules import Rules, batch_size


@pytest.mark.parametrize(
    ("n_examples", "observations", "expected"),
    [(100, 1, 32), (1600, 1, 100), (54_000, 1, 512), (54_000, 4, 128), (54_000, 32, 32), (1600, 784, 32)],
)
def test_a_step_takes_in_so_many_examples(n_examples: int, observations: int, expected: int) -> None:
    assert batch_size(n_examples, observations) == expected


def test_a_phase_waits_longer_where_steps_are_cheap() -> None:
    rules = Rules()
    waits = [rules.patience_for(multiplications) for multiplications in (1e3, 2.5e6, 1e8)]
    assert waits == [4 * rules.patience, 1000, rules.patience]


def test_training_goes_on_for_that_long() -> None:
    torch.manual_seed(0)
    x, y = torch.randn(80, 2), torch.randn(80)  # nothing to be learnt

    def steps(**options: Any) -> int:
        net = nn.Sequential(nn.Linear(2, 8), nn.Tanh(), nn.Linear(8, 1))
        fitted = bali.fit(net, (x, y), bali.likelihoods.Gaussian(), seed=0, verbose=False, **options)
        return len(fitted.history.losses[0])

    short = Rules(patience=50)
    assert steps(rules=short) >= short.patience_for(1.0) == 200
