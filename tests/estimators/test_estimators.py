"""The scikit-learn estimators: conventions, shapes, distributions, bad input."""

from __future__ import annotations

import pickle
import signal
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from numpy.typing import NDArray
from sklearn.base import clone
from sklearn.datasets import load_diabetes, load_wine
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import RidgeCV
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import bali
from bali import BALIClassifier, BALIRegressor
from bali.training.table_fit import Progress

Array = NDArray[Any]
QUICK: dict[str, Any] = {
    "max_iter": 80, "n_members": 2, "n_samples": 32, "hidden_layer_sizes": (10,), "random_state": 0,
}  # fmt: skip


@pytest.fixture(scope="module")
def curve() -> tuple[Array, Array]:
    rng = np.random.default_rng(0)
    X = rng.normal(size=(150, 3))
    return X, X[:, 0] ** 2 + 3.0 + 0.2 * rng.normal(size=150)


@pytest.fixture(scope="module")
def regressor(curve: tuple[Array, Array]) -> BALIRegressor:
    return BALIRegressor(**QUICK).fit(*curve)


@pytest.fixture(scope="module")
def classifier() -> BALIClassifier:
    X, y = load_wine(return_X_y=True)
    return BALIClassifier(**QUICK).fit(X, np.array(["red", "rosé", "white"])[y])


class TestRegression:
    def test_it_learns(self, regressor: BALIRegressor, curve: tuple[Array, Array]) -> None:
        assert regressor.score(*curve) > 0.8

    def test_std_and_intervals_are_those_of_the_distribution(
        self, regressor: BALIRegressor, curve: tuple[Array, Array]
    ) -> None:
        X, y = curve
        predictive = regressor.pred_dist(X)
        mean, std = regressor.predict(X, return_std=True)
        low, high = regressor.predict_interval(X, 0.9)
        assert mean.shape == std.shape == low.shape == high.shape == y.shape
        np.testing.assert_allclose(mean, predictive.mean[:, 0], rtol=1e-12)
        np.testing.assert_allclose(std**2, (predictive.epistemic + predictive.aleatoric)[:, 0], rtol=1e-10)
        for end, level in ((low, 0.05), (high, 0.95)):
            np.testing.assert_allclose(predictive.cdf(torch.as_tensor(end)), level, atol=1e-6)
        assert 0.75 < np.mean((low < y) & (y < high)) <= 1.0

    def test_quantiles_and_samples(self, regressor: BALIRegressor, curve: tuple[Array, Array]) -> None:
        X = curve[0][:20]
        quantiles = regressor.predict_quantiles(X, [0.1, 0.5, 0.9])
        assert quantiles.shape == (20, 3)
        assert (np.diff(quantiles, axis=1) > 0).all()
        draws = regressor.sample_y(X, 4000, random_state=1)
        assert draws.shape == (4000, 20)
        mean, std = regressor.predict(X, return_std=True)
        assert (np.abs(draws.mean(0) - mean) < 5 * std / 4000**0.5).all()
        np.testing.assert_array_equal(draws, regressor.sample_y(X, 4000, random_state=1))

    def test_units_of_the_target_do_not_matter(self, curve: tuple[Array, Array]) -> None:
        X, y = curve
        plain = BALIRegressor(**QUICK).fit(X, y).predict(X, return_std=True)
        scaled = BALIRegressor(**QUICK).fit(1e3 * X - 5, 1e4 * y + 7e5).predict(1e3 * X - 5, return_std=True)
        # The held-out rows are drawn by content, so they differ: agreement is statistical.
        assert np.corrcoef(plain[0], scaled[0])[0, 1] > 0.9
        assert 0.5 < np.median(scaled[1] / plain[1]) / 1e4 < 2.0

    def test_many_outputs_have_a_full_covariance(self) -> None:
        rng = np.random.default_rng(1)
        X = rng.normal(size=(400, 2))
        noise = rng.multivariate_normal([0, 0], [[0.04, 0.036], [0.036, 0.04]], size=400)
        model = BALIRegressor(**QUICK).fit(X, X @ [[1.0, 0.0], [0.0, 10.0]] + noise * [1.0, 10.0])
        mean, covariance = model.predict(X[:7], return_cov=True)
        assert mean.shape == (7, 2)
        assert covariance.shape == (7, 2, 2)
        correlation = covariance[:, 0, 1] / np.sqrt(covariance[:, 0, 0] * covariance[:, 1, 1])
        assert (correlation > 0.5).all()
        std = model.predict(X[:7], return_std=True)[1]
        np.testing.assert_allclose(std**2, np.diagonal(covariance, axis1=1, axis2=2), rtol=1e-10)
        assert model.predict_quantiles(X[:7]).shape == (7, 3, 2)
        assert model.sample_y(X[:7], 5).shape == (5, 7, 2)

    def test_one_column_of_targets_stays_a_column(self, curve: tuple[Array, Array]) -> None:
        X, y = curve
        assert BALIRegressor(**QUICK).fit(X, y[:, None]).predict(X).shape == (150, 1)

    def test_constant_columns_change_nothing(self, curve: tuple[Array, Array]) -> None:
        X, y = curve
        with_constant = np.column_stack([X, np.full(150, 3.5)])
        model = BALIRegressor(**QUICK).fit(with_constant, y)
        assert np.isfinite(model.predict(with_constant)).all()
        assert model.score(with_constant, y) > 0.8

    def test_std_and_cov_together_are_refused(self, regressor: BALIRegressor, curve: tuple[Array, Array]) -> None:
        with pytest.raises(ValueError, match="choose one"):
            regressor.predict(curve[0], return_std=True, return_cov=True)


class TestClassification:
    def test_probabilities(self, classifier: BALIClassifier) -> None:
        X, y = load_wine(return_X_y=True)
        p = classifier.predict_proba(X)
        assert p.shape == (178, 3)
        np.testing.assert_allclose(p.sum(1), 1.0, rtol=1e-6)  # a table of this size is trained in float32
        assert list(classifier.classes_) == ["red", "rosé", "white"]
        assert classifier.score(X, np.array(["red", "rosé", "white"])[y]) > 0.95
        np.testing.assert_allclose(np.exp(classifier.predict_log_proba(X)), p, rtol=1e-6)

    def test_uncertainty_splits_into_two_parts(self, classifier: BALIClassifier) -> None:
        X, _ = load_wine(return_X_y=True)
        predictive = classifier.pred_dist(X)
        np.testing.assert_allclose(predictive.entropy, predictive.aleatoric + predictive.mutual_information, atol=1e-6)
        far = classifier.pred_dist(X * 5)
        assert far.mutual_information.mean() > predictive.mutual_information.mean()

    def test_two_classes_of_bools(self) -> None:
        rng = np.random.default_rng(0)
        X = rng.normal(size=(100, 2))
        model = BALIClassifier(**QUICK).fit(X, X[:, 0] > 0)
        assert model.predict(X).dtype == bool
        assert model.score(X, X[:, 0] > 0) > 0.9


class TestConventions:
    def test_same_seed_same_model(self, curve: tuple[Array, Array], regressor: BALIRegressor) -> None:
        again = clone(regressor).fit(*curve)
        np.testing.assert_array_equal(again.predict(curve[0]), regressor.predict(curve[0]))

    def test_pickle_is_small_and_exact(self, regressor: BALIRegressor, curve: tuple[Array, Array]) -> None:
        data = pickle.dumps(regressor)
        assert len(data) < 200_000
        np.testing.assert_array_equal(pickle.loads(data).predict(curve[0]), regressor.predict(curve[0]))

    @pytest.mark.parametrize("kind", ["regressor", "classifier"])
    def test_saved_and_loaded(self, kind: str, request: pytest.FixtureRequest, tmp_path: Path) -> None:
        model = request.getfixturevalue(kind)
        X = load_wine().data if kind == "classifier" else request.getfixturevalue("curve")[0]
        model.save(tmp_path / "model.bali")
        loaded = bali.load(tmp_path / "model.bali")
        assert type(loaded) is type(model)
        np.testing.assert_array_equal(loaded.predict(X), model.predict(X))
        assert loaded.n_iter_ == model.n_iter_
        assert loaded.loss_curve_ == model.loss_curve_

    def test_frames_keep_their_names(self, curve: tuple[Array, Array], tmp_path: Path) -> None:
        frame = pd.DataFrame(curve[0], columns=["a", "b", "c"])
        model = BALIRegressor(**QUICK).fit(frame, pd.Series(curve[1]))
        assert list(model.feature_names_in_) == ["a", "b", "c"]
        model.save(tmp_path / "m")
        with pytest.raises(ValueError, match="feature names"):
            bali.load(tmp_path / "m").predict(frame[["c", "b", "a"]])

    def test_polars_frames(self, curve: tuple[Array, Array]) -> None:
        polars = pytest.importorskip("polars")
        frame = polars.DataFrame(curve[0], schema=["a", "b", "c"])
        model = BALIRegressor(**QUICK).fit(frame, polars.Series(curve[1]))
        assert list(model.feature_names_in_) == ["a", "b", "c"]
        np.testing.assert_array_equal(model.predict(frame), BALIRegressor(**QUICK).fit(*curve).predict(curve[0]))

    def test_pipelines_grid_search_and_cross_validation(self) -> None:
        X, y = load_diabetes(return_X_y=True)
        search = GridSearchCV(
            make_pipeline(StandardScaler(), BALIRegressor(**QUICK)), {"baliregressor__step_size": [0.1, 1.0]}, cv=2
        ).fit(X, y)
        assert search.best_score_ > 0.2
        assert cross_val_score(BALIRegressor(**QUICK), X, y, cv=2).mean() > 0.2

    def test_warm_start_goes_on(self, curve: tuple[Array, Array]) -> None:
        model = BALIRegressor(**QUICK, warm_start=True, near_rows=False).fit(*curve)
        first, candidates = model.loss_curve_, model.encoding_
        model.fit(*curve)
        assert model.encoding_ == candidates
        assert model.loss_curve_[0] < first[0] - 0.3  # from where the first fit ended
        assert model.validation_scores_[-1] > -first[0]
        cold = model.set_params(warm_start=False).fit(*curve)
        assert cold.loss_curve_ == first

    def test_warm_start_keeps_the_columns_of_y(self, curve: tuple[Array, Array]) -> None:
        model = BALIRegressor(**QUICK, warm_start=True).fit(*curve)
        with pytest.raises(ValueError, match="y has 2 outputs"):
            model.fit(curve[0], np.stack([curve[1], curve[1]], 1))

    def test_partial_fit_learns_from_a_stream(self) -> None:
        rng = np.random.default_rng(0)
        model = BALIClassifier(**QUICK)
        for _ in range(60):
            X = rng.normal(size=(64, 2))
            model.partial_fit(X, (X[:, 0] > X[:, 1]).astype(int), classes=[0, 1])
        X = rng.normal(size=(500, 2))
        assert model.n_iter_ == 60
        assert model.score(X, X[:, 0] > X[:, 1]) > 0.95

    def test_repr_in_a_notebook(self, regressor: BALIRegressor) -> None:
        assert "BALIRegressor" in regressor._repr_html_()


class TestTraining:
    def test_validation_is_watched(self, curve: tuple[Array, Array]) -> None:
        model = BALIRegressor(**QUICK | {"max_iter": 200}).fit(*curve)
        assert model.n_iter_ == len(model.loss_curve_) == 200
        assert len(model.validation_scores_) == len(model.validation_steps_) == 8
        assert model.validation_scores_ == sorted(model.validation_scores_)  # of the best so far
        assert model.validation_steps_[-1] == 200

    def test_what_was_chosen_is_told(self, regressor: BALIRegressor, curve: tuple[Array, Array]) -> None:
        scores = regressor.candidate_scores_
        others = {"as it is, rough", "a linear model"}
        assert set(scores) == {"as it is", "with up to 15 bins a column", "with waves", "with near rows"} | others
        best = max(scores, key=lambda name: scores[name])
        assert ("as it is" if best in others else best) in regressor.encoding_
        assert regressor.n_members_ == 2 * len(regressor.encoding_)
        assert regressor.likelihood_ == "gaussian"
        told = str(regressor.health())
        assert all(name in told for name in ("as it is", "noise", "networks", "gaussian"))
        only = BALIRegressor(**QUICK, n_bins=0).fit(*curve)
        assert set(only.encoding_) == {"as it is"}
        assert set(only.candidate_scores_) == {"as it is"} | others

    def test_bins_are_chosen_where_a_column_has_steps(self) -> None:
        rng = np.random.default_rng(0)
        X = rng.uniform(-1, 1, size=(600, 2))
        y = np.floor(4 * X[:, 0]) % 2 + 0.05 * rng.normal(size=600)
        model = BALIRegressor(**QUICK | {"max_iter": 150}, near_rows=False).fit(X, y)
        assert model.encoding_ == ["with up to 16 bins a column"]

    def test_waves_are_chosen_where_a_column_rises_and_falls(self) -> None:
        rng = np.random.default_rng(0)
        X = rng.uniform(-1, 1, size=(400, 3))
        y = np.sin(3 * X[:, 0]) + 0.01 * rng.normal(size=400)
        model = BALIRegressor(**QUICK | {"max_iter": 200, "hidden_layer_sizes": (4,)}).fit(X, y)
        assert "with waves" in model.encoding_
        assert "with waves" in str(model.health())

    def test_without_held_out_rows(self, curve: tuple[Array, Array], tmp_path: Path) -> None:
        model = BALIRegressor(**QUICK, validation_fraction=0.0).fit(*curve)
        assert (model.validation_scores_, model.candidate_scores_) == ([], {})
        assert model.score(*curve) > 0.8
        model.save(tmp_path / "m")
        np.testing.assert_array_equal(bali.load(tmp_path / "m").predict(curve[0]), model.predict(curve[0]))

    def test_a_time_limit_is_kept(self, curve: tuple[Array, Array]) -> None:
        started = time.monotonic()
        model = BALIRegressor(**QUICK | {"max_iter": 10**7}).fit(*curve, time_limit=2.0)
        assert time.monotonic() - started < 60.0  # a busy machine
        assert 50 <= model.n_iter_ < 10**7
        assert model.score(*curve) > 0.5
        with pytest.raises(ValueError, match="time_limit must be a positive number"):
            model.fit(*curve, time_limit=0.0)

    def test_order_of_rows_does_not_matter(self, curve: tuple[Array, Array], regressor: BALIRegressor) -> None:
        order = np.random.default_rng(3).permutation(150)
        shuffled = BALIRegressor(**QUICK).fit(curve[0][order], curve[1][order])
        np.testing.assert_array_equal(shuffled.predict(curve[0]), regressor.predict(curve[0]))

    def test_ctrl_c_keeps_the_best_posterior(self, curve: tuple[Array, Array]) -> None:
        before = signal.signal(signal.SIGINT, signal.default_int_handler)  # which jobs in the background ignore
        timer = threading.Timer(0.05, signal.raise_signal, [signal.SIGINT])

        def start_the_timer(progress: Progress) -> None:
            if progress.validation_score is not None and not timer.is_alive() and not timer.finished.is_set():
                timer.start()

        try:
            with pytest.warns(ConvergenceWarning, match="interrupted"):
                model = BALIRegressor(**QUICK | {"max_iter": 20_000}).fit_with_progress(*curve, start_the_timer)
        finally:
            timer.cancel()
            signal.signal(signal.SIGINT, before)
        assert np.isfinite(model.predict(curve[0])).all()
        assert model.n_iter_ < 20_000

    def test_weights_are_repetitions(self, curve: tuple[Array, Array]) -> None:
        X, y = curve[0][:40], curve[1][:40]
        weight = np.arange(40) % 3
        weighted = BALIRegressor(**QUICK).fit(X, y, sample_weight=weight)
        repeated = BALIRegressor(**QUICK).fit(np.repeat(X, weight, 0), np.repeat(y, weight))
        np.testing.assert_array_equal(weighted.predict(X), repeated.predict(X))


def test_with_few_rows_a_column_a_linear_law_is_found() -> None:
    """Ridge regression is the oracle, on three draws. Networks have to find out that the law is linear."""
    errors = []
    for seed in range(3):
        rng = np.random.default_rng(seed)
        X = rng.normal(size=(480, 20))
        y = X[:, :3] @ [2.0, -1.0, 1.0] + rng.normal(size=480)
        model = BALIRegressor(max_iter=300, n_members=4, hidden_layer_sizes=(32,), random_state=0).fit(X[:80], y[:80])
        ridge = RidgeCV(np.logspace(-2, 2, 9)).fit(X[:80], y[:80])
        errors.append([float(np.mean((m.predict(X[80:]) - y[80:]) ** 2)) for m in (model, ridge)])
    found, oracle = np.mean(errors, axis=0)
    assert found < 1.25 * oracle
