"""Positive skewed targets, whose logarithms are learnt as well."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

import bali
from bali import BALIRegressor
from bali.estimators.encodings import Encoding
from bali.estimators.second_models import chosen, is_skewed
from bali.files import ModelFileError
from bali.predictive.mixtures import RegressionPredictive
from bali.predictive.two_scales import TwoScalePredictive
from bali.training.calibration import Part

Array = NDArray[np.float64]
SMALL: dict[str, Any] = {"n_members": 4, "max_iter": 300, "hidden_layer_sizes": (16,), "random_state": 0}


def prices(n: int, seed: int) -> tuple[Array, Array]:
    """Noise is a share of the price."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, 3))
    return X, np.exp(0.8 * X[:, 0] + np.sin(2 * X[:, 1]) + 0.3 * rng.normal(size=n))


@pytest.fixture(scope="module")
def model() -> BALIRegressor:
    return BALIRegressor(**SMALL).fit(*prices(300, 0))


def test_they_are_learnt_and_are_better(model: BALIRegressor) -> None:
    Z, z = prices(1000, 1)
    found = model.pred_dist(Z)
    assert isinstance(found, TwoScalePredictive)
    plain = BALIRegressor(**SMALL, likelihood="gaussian").fit(*prices(300, 0))
    scores = [float(p.log_prob(torch.tensor(z)).mean()) for p in (found, plain.pred_dist(Z))]
    assert scores[0] > scores[1] + 0.05
    assert "logarithms" in model.health().chosen["targets"]
    assert model.n_members_ > plain.n_members_
    low, high = model.predict_interval(Z, coverage=0.9)
    assert 0.75 < np.mean((low <= z) & (z <= high)) < 0.97


def test_means_far_away_stay_within_reach(model: BALIRegressor) -> None:
    Z, _ = prices(50, 1)
    y = prices(300, 0)[1]
    mean, std = model.predict(1000.0 * Z, return_std=True)
    assert np.isfinite(mean).all()
    assert np.isfinite(std).all()
    assert model.logarithms_ is not None
    if model.logarithms_.alone:
        assert mean.max() < np.exp(np.log(y).mean() + 6.0 * np.log(y).std())


@pytest.mark.parametrize(
    ("y", "expected"),
    [
        (np.exp(np.linspace(-2, 2, 50)), True),
        (np.linspace(1, 2, 50), False),  # symmetric
        (-np.exp(np.linspace(-2, 2, 50)), False),
        (np.r_[0.0, np.exp(np.linspace(-2, 2, 50))], False),
        (np.full(50, 3.0), False),
        (np.ones(2), False),
    ],
)
def test_only_positive_skewed_targets_have_them(y: Array, expected: bool) -> None:
    assert is_skewed(y[:, None], np.ones(len(y))) is expected


def test_several_columns_have_none() -> None:
    y = np.exp(np.linspace(-2, 2, 50))
    assert not is_skewed(np.c_[y, y], np.ones(50))


def parts(log_mean: float, log_width: float, n: int = 200) -> tuple[list[Part], list[Part]]:
    """Predictions of y from 1 to 3 by N(2.4, .5), and by exp of a Gaussian."""
    y = torch.linspace(1.0, 3.0, n, dtype=torch.float64)[:, None]
    unit = torch.ones(1, 1, 1, dtype=torch.float64)
    of_y = RegressionPredictive(torch.full((1, n, 1), 2.4, dtype=torch.float64), 0.25 * unit)
    of_log = RegressionPredictive(torch.full((1, n, 1), log_mean, dtype=torch.float64), log_width**2 * unit)
    weight = torch.ones(n, dtype=torch.float64)
    return [Part(of_y, y, weight)], [Part(of_log, y, weight)]


def test_held_out_rows_tell_what_counts(model: BALIRegressor) -> None:
    assert chosen(model, *parts(5.0, 0.3)) is None  # far off
    better = chosen(model, *parts(0.62, 0.35))
    assert better is not None
    assert better.scores[1] > better.scores[0]


def test_a_better_likelihood_alone_is_not_enough(model: BALIRegressor) -> None:
    """Logarithms that are right about small values and far off for large ones."""
    y = torch.tensor([0.01] * 30 + [100.0, 110.0], dtype=torch.float64)[:, None]
    weight, unit = torch.ones(32, dtype=torch.float64), torch.ones(1, 1, 1, dtype=torch.float64)
    of_y = Part(RegressionPredictive((y + 0.5)[None], unit), y, weight)
    means = torch.where(y < 1.0, y.log(), y.log() - 2.0)
    of_log = Part(RegressionPredictive(means[None], unit), y, weight)
    score = [float(p.predictive.log_prob(t).mean()) for p, t in ((of_y, y), (of_log, y.log()))]
    assert score[1] - float(y.log().mean()) > score[0]
    assert chosen(model, [of_y], [of_log]) is None


def test_files_and_pickles_keep_them(model: BALIRegressor, tmp_path: Path) -> None:
    Z, z = prices(100, 1)
    model.save(tmp_path / "model.bali")
    for again in (bali.load(tmp_path / "model.bali"), pickle.loads(pickle.dumps(model))):
        assert (again.predict(Z) == model.predict(Z)).all()
        torch.testing.assert_close(
            again.pred_dist(Z).log_prob(torch.tensor(z)), model.pred_dist(Z).log_prob(torch.tensor(z))
        )
        assert again.health().chosen == model.health().chosen


def test_a_file_whose_logarithms_do_not_fit_is_refused(model: BALIRegressor, tmp_path: Path) -> None:
    state = model.fitted_state()
    state["meta"]["logarithms"]["recipe"]["n_members"] += 1
    broken = BALIRegressor(**SMALL).fit(*prices(300, 0))
    broken.fitted_state = lambda: state  # type: ignore[method-assign]
    with pytest.raises(ModelFileError):
        broken.save(tmp_path / "model.bali")
    assert not (tmp_path / "model.bali").exists()


def test_rows_can_be_chosen_added_and_streamed(model: BALIRegressor) -> None:
    Z, z = prices(60, 2)
    again = pickle.loads(pickle.dumps(model))
    assert len(bali.active.query(again, Z, 3)) == 3
    assert again.condition(Z, z).predict(Z).mean.shape == (60, 1)
    again.partial_fit(Z, z)
    assert again.logarithms_ is None
    assert not isinstance(again.pred_dist(Z), TwoScalePredictive)


def test_a_warm_start_goes_on_with_both() -> None:
    X, y = prices(300, 0)
    warm = BALIRegressor(**SMALL, warm_start=True).fit(X, y)
    assert warm.logarithms_ is not None
    first = warm.logarithms_.model
    warm.fit(X, y)
    assert warm.logarithms_ is not None
    assert warm.logarithms_.model is first


def test_one_bar_shows_both_trainings() -> None:
    X, y = prices(200, 0)
    seen = []
    BALIRegressor(**(SMALL | {"max_iter": 60})).fit_with_progress(X, y, lambda p: seen.append((p.step, p.max_steps)))
    assert all(step <= most for step, most in seen)
    assert seen[-1][0] == seen[-1][1]
    assert sum(step > most / 2 for step, most in seen) > 20


def test_without_held_out_rows_there_are_none() -> None:
    X, y = prices(100, 0)
    assert BALIRegressor(**SMALL, validation_fraction=0).fit(X, y).logarithms_ is None


def test_no_row_sees_its_own_target_among_near_rows() -> None:
    """Ways that were found with y serve logarithms, too: noise that near rows cannot know is not predicted."""
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(400, 2)), np.exp(rng.normal(size=400))
    model = BALIRegressor(**SMALL, near_rows=True)
    seen = []
    original = BALIRegressor._encoded

    def watch(self: BALIRegressor, encoding: Encoding, rows: Array, targets: Array | None = None) -> torch.Tensor:
        found = original(self, encoding, rows, targets)
        if encoding.near is not None and targets is not None:
            seen.append((found[:, -4].double().numpy(), targets[:, 0]))
        return found

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(BALIRegressor, "_encoded", watch)
        model.fit(X, y)
    assert seen
    for average, own in seen:
        assert abs(np.corrcoef(average, own)[0, 1]) < 0.3
