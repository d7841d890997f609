"""Rows that count by their precision in a second training."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

import bali
from bali import BALIRegressor
from bali.estimators import base, defaults
from bali.training import table_fit, table_precision
from bali.training.table_posterior import is_gain

N = 800
SETTINGS: dict[str, Any] = {"hidden_layer_sizes": (32, 32), "n_bins": 0, "n_members": 4, "max_iter": 400}


def table(seed: int, spread: float) -> tuple[NDArray[Any], NDArray[Any]]:
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(N, 3))
    return X, np.sin(2 * X[:, 0]) + 0.3 * np.exp(spread * X[:, 1]) * rng.normal(size=N)


def test_nothing_is_trained_twice_where_noise_is_constant() -> None:
    X, y = table(0, 0.0)
    model = BALIRegressor(random_state=0, **SETTINGS).fit(X, y)
    assert model.posterior_.row_noise is None
    assert not model.posterior_.by_precision


@pytest.mark.parametrize("is_better", [True, False])
def test_a_second_training_is_kept_where_held_out_rows_are_likelier(
    is_better: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(table_precision, "are_likelier", lambda *_: is_better)
    X = np.random.default_rng(4).normal(size=(N, 3))
    y = np.sin(2 * X[:, 0]) + 0.1 * np.exp(1.5 * X[:, 1]) * np.random.default_rng(5).normal(size=N)
    seen: list[tuple[int, int]] = []
    model = BALIRegressor(random_state=0, **SETTINGS | {"max_iter": 100, "n_members": 2, "validation_fraction": 0.4})
    model.fit_with_progress(X, y, lambda progress: seen.append((progress.step, progress.max_steps)))
    assert [step for step, _ in seen] == sorted(step for step, _ in seen)
    assert all(step <= most for step, most in seen)
    assert ("by which rows count" in model.health().chosen["noise"]) is is_better
    assert len(model.encodings_) == len(model.posterior_.stacks) == len(model.recipe_.stacks)
    model.save(tmp_path / "model.bali")
    again = bali.load(tmp_path / "model.bali")
    assert again.posterior_.by_precision is is_better
    assert (again.predict(X) == model.predict(X)).all()


def test_more_members_begin_anew_where_few_groups_were_held_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Four members hold out two groups of rows, then ten hold out five; a second model is compared on the same two."""
    monkeypatch.setattr(defaults, "members", lambda _: 4)
    rng = np.random.default_rng(6)
    X = rng.normal(size=(N, 3))
    y = np.exp(1.0 + 0.3 * np.sin(X[:, 0]) + 0.05 * np.exp(1.2 * X[:, 1]) * rng.normal(size=N))
    asked: list[tuple[int, int]] = []
    train = table_fit.train_table

    def watched(
        candidates: Any, n_members: int, activation: str, t: Any, weight: Any, held_out: Any, *rest: Any, **more: Any
    ) -> Any:
        asked.append((n_members, len(held_out)))
        return train(candidates, n_members, activation, t, weight, held_out, *rest, **more)

    monkeypatch.setattr(base, "train_table", watched)
    short = {name: value for name, value in SETTINGS.items() if name != "n_members"} | {"max_iter": 150}
    model = BALIRegressor(random_state=0, warm_start=True, **short).fit(X, y)
    assert asked[:3] == [(4, 2), (10, 5), (10, 5)]
    assert model.posterior_.by_precision
    assert model.posterior_.stacks[0].n_members == model.recipe_.n_members == 10
    assert model.recipe_.n_groups == 5
    model.save(tmp_path / "model.bali")
    assert (bali.load(tmp_path / "model.bali").predict(X) == model.predict(X)).all()
    del asked[:]
    model.fit(X, y)  # goes on with all ten
    assert set(asked) == {(10, 5)}


def test_counts_that_are_heaped_have_factors_and_keep_them_in_a_file(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    X = rng.normal(size=(2000, 2))
    y = rng.poisson(np.exp(1.5 + 0.4 * X[:, 0])).astype(float)
    heaped = np.where((y % 5 == 4) & (rng.random(2000) < 0.8), y + 1, y)
    model = BALIRegressor(likelihood="poisson", random_state=0, **SETTINGS).fit(X, heaped)
    factors = model.posterior_.heaps
    assert factors[5] > 3 * factors[4]
    assert "times as many of" in model.health().chosen["heaps"]
    model.save(tmp_path / "model.bali")
    again = bali.load(tmp_path / "model.bali")
    assert again.posterior_.heaps == pytest.approx(factors)
    torch.testing.assert_close(again.pred_dist(X[:9]).mean, model.pred_dist(X[:9]).mean)


def test_a_gain_has_to_be_more_than_its_errors() -> None:
    gains = torch.tensor([0.5, 1.5, -0.5, 0.5], dtype=torch.float64)  # .5 ± .35
    every = torch.ones(4, dtype=torch.float64)
    assert is_gain(gains, every)
    assert not is_gain(gains, every, 2.0)
    assert is_gain(gains, torch.tensor([1.0, 5.0, 0.0, 1.0], dtype=torch.float64), 2.0)
