"""What a user may expect of every method: one test for each expectation, one row of the table for each method."""

from __future__ import annotations

import importlib.util
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from numpy.typing import NDArray
from sklearn.base import clone
from sklearn.exceptions import NotFittedError

import bali
from bali_benchmarks.baselines import METHODS, BaselineClassifier, BaselineRegressor, load

Array = NDArray[Any]
Estimator = BaselineRegressor | BaselineClassifier

HAS_PEERS = importlib.util.find_spec("laplace") is not None
#: Without the optional extra, Laplace approximations only say what to install: see test_laplace.py.
NAMES = [name for name in METHODS if HAS_PEERS or not name.startswith("laplace")]
LABELS = np.array(["ash", "birch", "cedar"])
QUICK: dict[str, Any] = {
    "hidden_layer_sizes": (8,), "max_iter": 60, "batch_size": 16, "n_samples": 20, "random_state": 0,
}  # fmt: skip


def rows(n: int = 90, seed: int = 0) -> tuple[Array, Array, Array]:
    """Inputs, a number to predict and a class to predict."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, 3)) * [1.0, 10.0, 0.1] + [0.0, 5.0, 0.0]
    signal = X[:, 0] + 0.1 * X[:, 1]
    return X, 100.0 + 20.0 * (signal + 0.1 * rng.normal(size=n)), LABELS[np.digitize(signal, [0.0, 1.0])]


def estimator(name: str, task: str, **change: Any) -> Estimator:
    return (BaselineRegressor if task == "regression" else BaselineClassifier)(name, **QUICK | change)


CASES = [
    pytest.param((name, task), id=f"{name}-{task}")
    for name in NAMES
    for task in ("regression", "classification")
    if task == "regression" or METHODS[name].classifies
]


@pytest.fixture(scope="module", params=CASES)
def fitted(request: pytest.FixtureRequest) -> tuple[Estimator, Array, Array]:
    name, task = request.param
    X, y, labels = rows()
    target = y if task == "regression" else labels
    return estimator(name, task).fit(X, target), X, target


def test_it_learns_something_and_says_how_sure_it_is(fitted: tuple[Estimator, Array, Array]) -> None:
    model, X, y = fitted
    if isinstance(model, BaselineRegressor):
        mean, std = model.predict(X, return_std=True)
        low, high = model.predict_interval(X, 0.9)
        assert mean.shape == std.shape == low.shape == y.shape
        assert (std > 0).all()
        assert (low < high).all()
        assert (np.diff(model.predict_quantiles(X, [0.1, 0.5, 0.9]), axis=1) > 0).all()
        assert model.sample_y(X, 4).shape == (4, len(X))
        assert np.abs(mean - y.mean()).max() < 10 * y.std()  # in the units of y
        assert 0.3 < np.mean((low < y) & (y < high)) <= 1.0  # after so few steps
    else:
        p = model.predict_proba(X)
        assert p.shape == (len(X), 3)
        np.testing.assert_allclose(p.sum(1), 1.0, rtol=1e-5)
        assert list(model.classes_) == list(LABELS)
        assert set(model.predict(X)) <= set(LABELS)
        np.testing.assert_allclose(model.predict_log_proba(X), np.log(p), rtol=1e-6)
    assert np.isfinite(model.score(X, y))
    assert model.pred_dist(X).n_rows == len(X)


def test_a_row_is_predicted_alike_whatever_rows_it_is_with(fitted: tuple[Estimator, Array, Array]) -> None:
    model, X, _ = fitted
    predict = model.predict if isinstance(model, BaselineRegressor) else model.predict_proba
    np.testing.assert_allclose(predict(X[5:8]), predict(X)[5:8], rtol=1e-4)


def test_saved_loaded_and_pickled(fitted: tuple[Estimator, Array, Array], tmp_path: Path) -> None:
    model, X, y = fitted
    model.save(tmp_path / "model.bali")
    loaded = load(tmp_path / "model.bali")
    assert type(loaded) is type(model)
    for other in (loaded, pickle.loads(pickle.dumps(model))):
        np.testing.assert_array_equal(other.predict(X), model.predict(X))
        assert other.score(X, y) == model.score(X, y)
        assert (other.settings_, other.n_iter_) == (model.settings_, model.n_iter_)
    assert loaded.get_params() | {"hidden_layer_sizes": (8,)} == model.get_params()


def test_the_same_seed_gives_the_same_model_and_another_another(fitted: tuple[Estimator, Array, Array]) -> None:
    model, X, y = fitted
    short = {"max_iter": 5}
    outputs = [
        clone(model).set_params(random_state=seed, **short).fit(X, y).pred_dist(X[:20]).mean.numpy() for seed in (1, 1, 2)
    ]
    np.testing.assert_array_equal(outputs[0], outputs[1])
    assert not np.array_equal(outputs[0], outputs[2])


@pytest.mark.parametrize("name", NAMES)
def test_several_outputs(name: str) -> None:
    if name == "pbp":
        with pytest.raises(ValueError, match="predicts one target, not 2"):
            estimator(name, "regression").fit(rows()[0], np.ones((90, 2)))
        return
    X, y, _ = rows()
    model = estimator(name, "regression", max_iter=10).fit(X, np.column_stack([y, -y]))
    assert isinstance(model, BaselineRegressor)
    mean, covariance = model.predict(X[:7], return_cov=True)
    assert mean.shape == (7, 2)
    assert covariance.shape == (7, 2, 2)


@pytest.mark.parametrize("name", NAMES)
def test_grid(name: str) -> None:
    """Six settings for each method that has any, all of them its own."""
    kind = METHODS[name]
    assert len(kind.grid) in {1, 6}
    assert len(kind.grid) == 6 or kind.grid == ({},)
    for settings in kind.grid:
        assert kind(**settings) is not None
    assert kind.title
    assert kind.citation


class TestBadInput:
    """The same for all methods: it is met before any of them is called."""

    def test_unknown_method(self) -> None:
        with pytest.raises(ValueError, match="method must be one of map, mc_dropout"):
            estimator("sgd", "regression").fit(*rows()[:2])

    @pytest.mark.parametrize(
        ("change", "message"),
        [
            ({"activation": "swish"}, "activation must be one of relu"),
            ({"max_iter": 0}, "max_iter must be at least 1"),
            ({"n_samples": 0}, "n_samples must be at least 1"),
            ({"validation_fraction": 1.5}, "validation_fraction must lie"),
            ({"settings": {"rate": 0.1}}, "MAP has no such settings"),
        ],
        ids=lambda v: next(iter(v)) if isinstance(v, dict) else "",
    )
    def test_parameters(self, change: dict[str, Any], message: str) -> None:
        with pytest.raises(ValueError, match=message):
            estimator("map", "regression", **change).fit(*rows()[:2])

    def test_data(self) -> None:
        X, y, labels = rows()
        with pytest.raises(ValueError, match="NaN"):
            estimator("map", "regression").fit(np.where(X > 1, np.nan, X), y)
        with pytest.raises(ValueError, match="infinity"):
            estimator("map", "regression").fit(X, np.where(y > 100, np.inf, y))
        with pytest.raises(ValueError, match="only one class"):
            estimator("map", "classification").fit(X, labels == "oak")
        with pytest.raises(ValueError, match="minimum of 2"):
            estimator("map", "regression").fit(X[:1], y[:1])
        with pytest.raises(NotFittedError):
            estimator("map", "regression").predict(X)

    def test_other_columns(self) -> None:
        X, y, _ = rows()
        frame = pd.DataFrame(X, columns=["a", "b", "c"])
        model = estimator("map", "regression", max_iter=5).fit(frame, y)
        with pytest.raises(ValueError, match="feature names"):
            model.predict(frame[["c", "b", "a"]])
        with pytest.raises(ValueError, match="3 features"):
            estimator("map", "regression", max_iter=5).fit(X, y).predict(X[:, :2])

    def test_a_table_model_is_not_read_from_a_baseline(self, tmp_path: Path) -> None:
        from bali.tables.table_model import load_table_model

        X, y, _ = rows()
        estimator("map", "regression", max_iter=5).fit(X, y).save(tmp_path / "m")
        with pytest.raises(bali.ModelFileError, match="'BaselineRegressor'; expected one of BALIRegressor"):
            load_table_model(tmp_path / "m")


def test_a_bar_shows_progress(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TTY_COMPATIBLE", "1")  # rich draws as on a terminal
    X, y, _ = rows()
    estimator("map", "regression", max_iter=5, verbose=1).fit(X, y)
    assert "validation" in capsys.readouterr().err
