"""A stream that changes is noticed, one that does not is left alone."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import bali
from bali.predictive.mixtures import RegressionPredictive
from bali.training.drift import has_drifted
from support.networks import randn


def predict(x: Tensor) -> RegressionPredictive:
    """The law of the rows before they change: y = x + noise."""
    return RegressionPredictive(x[None], torch.ones(1, 1, 1).double())


def batch(seed: int, shift: float = 0.0, n: int = 50) -> tuple[Tensor, Tensor]:
    x = randn(n, 1, seed=seed)
    return x, x + shift + randn(n, 1, seed=seed + 1000)


KNOWN = batch(0, n=400)


def test_a_law_that_stays_is_not_said_to_change() -> None:
    watch = bali.DriftWatch(predict, *KNOWN)
    assert not any(watch.update(*batch(seed)) for seed in range(1, 100))
    assert "is as it was" in str(watch)


def test_a_small_change_is_found_after_some_batches_and_a_large_one_at_once() -> None:
    small, large = (bali.DriftWatch(predict, *KNOWN) for _ in range(2))
    found = [small.update(*batch(seed, shift=0.6)) for seed in range(1, 40)]
    assert not found[0]
    assert found[-1]
    assert large.update(*batch(1, shift=4.0))
    assert "has drifted: fit again" in str(large)


def test_it_needs_rows_to_compare_with() -> None:
    x, y = batch(0)
    with pytest.raises(ValueError, match="5 rows tell too little"):
        bali.DriftWatch(predict, x[:5], y[:5])
    assert str(bali.DriftWatch(predict, x, y)) == "no batches yet"


def test_a_stream_that_is_learnt_from_is_watched_by_its_losses() -> None:
    losses = (3.0 * torch.exp(-torch.arange(60) / 10) + 0.2 * randn(60, seed=0)).tolist()
    assert not any(has_drifted(losses[:n]) for n in range(61))  # also while it gets better
    assert not has_drifted([*losses, 50.0, *losses[-5:]])  # a single batch
    assert has_drifted([*losses[20:], 2.0, 2.1, 1.9, 2.0, 2.2])
