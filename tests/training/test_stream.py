"""Tables that come in batches."""

from __future__ import annotations

import pickle
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import bali
from bali import BALIClassifier, BALIRegressor

Array = NDArray[Any]
SMALL: dict[str, Any] = {"hidden_layer_sizes": (16,), "n_members": 2, "random_state": 0}


def batch(seed: int, n: int = 64) -> tuple[Array, Array]:
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, 2))
    return X, np.sin(2 * X[:, 0]) + X[:, 1] + 0.1 * rng.normal(size=n)


def streamed(model: BALIRegressor, batches: range) -> BALIRegressor:
    for seed in batches:
        model.partial_fit(*batch(seed))
    return model


def error(model: BALIRegressor) -> float:
    X, y = batch(10**6, 500)
    return float(np.mean((model.predict(X) - y) ** 2))


def test_a_stream_is_learnt_and_its_noise_found() -> None:
    model = streamed(BALIRegressor(**SMALL), range(150))
    X, y = batch(10**6, 500)
    assert (model.n_iter_, model.n_seen_, len(model.loss_curve_)) == (150, 150 * 64, 150)
    assert error(model) < 0.05
    _, std = model.predict(X, return_std=True)
    low, high = model.predict_interval(X, 0.9)
    assert 0.8 < np.mean((low < y) & (y < high)) <= 1.0
    assert std.mean() < 0.5


def test_a_saved_and_loaded_stream_goes_on(tmp_path: Path) -> None:
    """As far as it had come: only momentum is lost."""
    whole = streamed(BALIRegressor(**SMALL), range(60))
    before = streamed(BALIRegressor(**SMALL), range(30))
    before.save(tmp_path / "stream.bali")
    loaded = bali.load(tmp_path / "stream.bali")
    assert isinstance(loaded, BALIRegressor)
    X, _ = batch(10**6, 100)
    np.testing.assert_allclose(loaded.predict(X), before.predict(X), rtol=1e-12, atol=1e-14)  # stored the other way round
    assert (loaded.n_iter_, loaded.n_seen_) == (30, 30 * 64)
    after = error(streamed(loaded, range(30, 60)))
    assert loaded.n_iter_ == 60
    assert loaded.n_seen_ == 60 * 64
    assert after < 0.7 * error(before)
    assert after < 1.5 * error(whole)


def test_a_pickle_goes_on_too() -> None:
    before = streamed(BALIRegressor(**SMALL), range(20))
    again = pickle.loads(pickle.dumps(before))
    np.testing.assert_allclose(again.predict(batch(1)[0]), before.predict(batch(1)[0]), rtol=1e-12, atol=1e-14)
    assert streamed(again, range(20, 22)).n_iter_ == 22


def test_a_fitted_model_learns_from_later_batches() -> None:
    X, y = batch(0, 200)
    model = BALIRegressor(**SMALL, max_iter=100, n_bins=0).fit(X, y)
    before, seen = error(model), model.n_seen_
    streamed(model, range(1, 40))
    assert error(model) < 1.2 * before
    assert model.n_seen_ == seen + 39 * 64
    _, std = model.predict(X, return_std=True)
    assert std.mean() < 1.0


def test_noise_of_each_row_becomes_that_of_a_typical_one() -> None:
    rng = np.random.default_rng(0)
    X = rng.normal(size=(600, 2))
    y = X[:, 1] + np.exp(-3 + X[:, 0]) * rng.normal(size=600)
    model = BALIRegressor(**SMALL, max_iter=150, n_bins=0, validation_fraction=0.4).fit(X, y)
    assert model.posterior_.row_noise is not None
    _, before = model.predict(X, return_std=True)
    model.partial_fit(X[:64], y[:64])
    assert model.posterior_.row_noise is None
    _, after = model.predict(X, return_std=True)
    assert 0.4 < np.median(after) / np.median(before) < 2.5


def test_classes_that_come_later_are_named_at_first() -> None:
    model = BALIClassifier(**SMALL)
    for seed in range(60):
        X, y = batch(seed)
        model.partial_fit(X, np.where(y > 0, "up", "down"), classes=["down", "level", "up"])
    X, y = batch(10**6, 500)
    assert model.score(X, np.where(y > 0, "up", "down")) > 0.85
    assert model.predict_proba(X).shape == (500, 3)


def test_single_rows_after_the_first_batch() -> None:
    model = streamed(BALIRegressor(**SMALL), range(2))
    X, y = batch(3)
    model.partial_fit(X[:1], y[:1])
    assert np.isfinite(model.predict(X)).all()
    with pytest.raises(ValueError, match="2 features"):
        model.partial_fit(X[:, :1], y)


def test_output_layers_are_those_of_all_rows_however_they_come() -> None:
    """A regression in three parts, saved in between, is that in one; other layers stay."""
    X, y = batch(0, 200)
    more = [batch(seed, n) for seed, n in ((1, 1), (2, 30), (3, 12))]
    models = [BALIRegressor(**SMALL, max_iter=60).fit(X, y) for _ in range(2)]
    parts, whole = models
    for rows in more:
        parts = pickle.loads(pickle.dumps(parts.partial_fit(*rows, output_only=True)))
    whole.partial_fit(*(np.concatenate(part) for part in zip(*more, strict=True)), output_only=True)
    assert parts.posterior_.row_noise is None
    assert parts.n_seen_ == whole.n_seen_ == 243
    for ours, all_at_once in zip(parts.posterior_.stacks, whole.posterior_.stacks, strict=True):
        for a, b in zip(ours.layers[:-1], all_at_once.layers[:-1], strict=True):
            np.testing.assert_array_equal(a.mean, b.mean)
        a, b = ours.layers[-1], all_at_once.layers[-1]
        np.testing.assert_allclose(a.mean, b.mean, rtol=1e-8, atol=1e-8)
        np.testing.assert_allclose(a.input_values, b.input_values, rtol=1e-8, atol=1e-6)
        assert a.prior_variance == pytest.approx(b.prior_variance, rel=1e-8)
    noises = [model.posterior_.noise for model in (parts, whole)]
    assert noises[0] is not None
    assert noises[1] is not None
    np.testing.assert_allclose(noises[0], noises[1], rtol=1e-8)


def test_output_layers_learn_from_later_batches_and_a_file_has_them(tmp_path: Path) -> None:
    X, y = batch(0, 60)
    model = BALIRegressor(**SMALL, max_iter=100, n_bins=0).fit(X, y)
    before = error(model)
    for seed in range(1, 30):
        model.partial_fit(*batch(seed), output_only=True)
    assert error(model) < 0.8 * before
    model.save(tmp_path / "m.bali")
    np.testing.assert_array_equal(bali.load(tmp_path / "m.bali").predict(X), model.predict(X))


def test_old_rows_fade() -> None:
    X, y = batch(0, 100)
    kept, fades = (BALIRegressor(**SMALL, max_iter=60).fit(X, y) for _ in range(2))
    for seed in range(1, 15):
        U, v = batch(seed, 20)
        kept.partial_fit(U, v + 3, output_only=True)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", bali.HealthWarning)
            fades.partial_fit(U, v + 3, output_only=True, forget=0.3)
    U, v = batch(100, 200)
    errors = [float(np.mean((model.predict(U) - v - 3) ** 2)) for model in (kept, fades)]
    assert errors[1] < errors[0]
    assert fades.n_seen_ < kept.n_seen_
    stream = streamed(BALIRegressor(**SMALL), range(3))
    stream.partial_fit(U, v, forget=0.5)
    assert stream.n_seen_ == 3 * 32 + 200
    with pytest.raises(ValueError, match="forget must be at least 0 and below 1"):
        stream.partial_fit(U, v, forget=1.0)


@pytest.mark.parametrize("output_only", [False, True])
def test_a_law_that_changes_is_reported(output_only: bool) -> None:
    model = BALIRegressor(**SMALL, max_iter=100).fit(*batch(0, 400)) if output_only else BALIRegressor(**SMALL)
    for seed in range(1, 70):
        model.partial_fit(*batch(seed), output_only=output_only)
    assert not model.drifted_
    assert not model.health().problems

    def change() -> None:
        for seed in range(70, 76):
            X, y = batch(seed)
            model.partial_fit(X, y + 2 * X[:, 0], output_only=output_only)

    with pytest.warns(bali.HealthWarning, match="less likely than those before"):
        change()
    assert model.drifted_
    assert "forget=0.1" in model.health().problems[0]


def test_output_only_is_for_fitted_regressions() -> None:
    X, y = batch(0)
    for model in (BALIRegressor(**SMALL), BALIClassifier(**SMALL)):
        with pytest.raises(ValueError, match="output_only is for a BALIRegressor that is fitted"):
            model.partial_fit(X, (y > 0).astype(int), classes=[0, 1], output_only=True)
