"""What the estimators do not take, and how they say so."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import bali
from bali import BALIClassifier, BALIRegressor
from support.networks import inference, mlp

Curve = tuple[NDArray[Any], NDArray[Any]]
QUICK: dict[str, Any] = {"max_iter": 30, "n_members": 2, "hidden_layer_sizes": (10,), "random_state": 0}


@pytest.fixture(scope="module")
def curve() -> Curve:
    rng = np.random.default_rng(0)
    X = rng.normal(size=(150, 3))
    return X, X[:, 0] ** 2 + 3.0 + 0.2 * rng.normal(size=150)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"activation": "swish"}, "activation must be one of relu"),
        ({"n_members": 0}, "n_members must be at least 1"),
        ({"validation_fraction": 1.5}, "validation_fraction must lie"),
        ({"step_size": -1.0}, "step_size must be a positive number"),
        ({"step_size": lambda step: 0.5}, "step_size must be a positive number"),
        ({"prior_variance": 0.0}, "prior_variance must be a positive number"),
        ({"n_bins": -1}, "n_bins must be 0 or more"),
        ({"max_iter": 0}, "max_iter must be at least 1"),
        ({"batch_size": float("inf")}, "batch_size must be at least 1 and whole, got inf"),
        ({"n_members": 2.5}, "n_members must be at least 1 and whole"),
        ({"device": "nowhere"}, "device must be 'auto', 'cpu' or another that torch has here, got 'nowhere'"),
        ({"device": 2}, "device must be"),
        ({"n_jobs": float("inf")}, "n_jobs must be at least 1 and whole"),
        ({"n_samples": 2**40}, "n_samples must be at most"),
        ({"likelihood": "cauchy"}, "likelihood must be one of auto, counts, durations"),
        ({"likelihood": "categorical"}, "likelihood must be one of"),
    ],
    ids=lambda v: next(iter(v)) if isinstance(v, dict) else "",
)
def test_settings(change: dict[str, Any], message: str, curve: Curve) -> None:
    with pytest.raises(ValueError, match=message):
        BALIRegressor(**QUICK | change).fit(*curve)


@pytest.mark.parametrize(
    ("likelihood", "wrong", "message"),
    [
        ("counts", -1.0, "needs counts 0, 1, 2, …; row 7 of y .*has -1"),
        ("gamma", 0.0, "Gamma needs positive numbers; row 7 of y"),
        ("beta", 1.5, "Beta needs shares strictly between 0 and 1; row"),
    ],
)
def test_targets_that_cannot_be_are_named_by_their_rows_in_y(
    likelihood: str, wrong: float, message: str, curve: Curve
) -> None:
    y = np.where(np.arange(150) == 7, wrong, 0.5 if likelihood == "beta" else np.arange(150) % 5 + 1.0)
    with pytest.raises(ValueError, match=message):
        BALIRegressor(**QUICK, likelihood=likelihood).fit(curve[0], y)


def test_durations_may_be_fields_in_any_order_or_bounds(curve: Curve) -> None:
    X, time = curve[0], np.exp(0.3 * curve[0][:, 1])
    over = np.arange(150) % 3 > 0
    fields = {"event": over, "time": time}
    models = []
    for names in (("event", "time"), ("time", "event")):
        y = np.empty(150, dtype=[(name, fields[name].dtype) for name in names])
        for name in names:
            y[name] = fields[name]
        models.append(BALIRegressor(**QUICK, likelihood="weibull").fit(X, y))
        with pytest.raises(ValueError, match="y has fields, as durations have"):
            BALIRegressor(**QUICK).fit(X, y)
    bounds = np.stack([time, np.where(over, time, np.inf)], 1)
    models.append(BALIRegressor(**QUICK, likelihood="weibull").fit(X, bounds))
    for model in models[1:]:
        np.testing.assert_array_equal(model.predict_median(X), models[0].predict_median(X))
    within = BALIRegressor(**QUICK, likelihood="weibull").fit(X, np.stack([0.8 * time, 1.25 * time], 1))
    assert np.corrcoef(within.predict_median(X), time)[0, 1] > 0.8
    with pytest.raises(ValueError, match="events must be 0 or 1; row 3"):
        BALIRegressor(**QUICK, likelihood="weibull").fit(X, np.stack([3 + time, np.where(np.arange(150) == 3, 2, 1)], 1))


def test_nan_is_a_missing_cell_among_inputs_and_refused_among_targets(curve: Curve) -> None:
    X, y = curve[0].copy(), curve[1].copy()
    X[3, 1] = np.nan
    assert np.isfinite(BALIRegressor(**QUICK).fit(X, y).predict(X, return_std=True)).all()
    y[3] = np.nan
    with pytest.raises(ValueError, match="NaN"):
        BALIRegressor(**QUICK).fit(curve[0], y)


def test_infinite_target(curve: Curve) -> None:
    y = curve[1].copy()
    y[3] = np.inf
    with pytest.raises(ValueError, match="infinity"):
        BALIRegressor(**QUICK).fit(curve[0], y)


def test_one_class(curve: Curve) -> None:
    with pytest.raises(ValueError, match="only one class"):
        BALIClassifier(**QUICK).fit(curve[0], np.zeros(150, int))


def test_one_row() -> None:
    with pytest.raises(ValueError, match="minimum of 2"):
        BALIRegressor(**QUICK).fit([[1.0]], [1.0])


def test_columns_at_predict(curve: Curve) -> None:
    regressor = BALIRegressor(**QUICK).fit(*curve)
    with pytest.raises(ValueError, match="3 features"):
        regressor.predict(np.zeros((2, 4)))


def test_unknown_class_in_partial_fit() -> None:
    model = BALIClassifier(**QUICK).partial_fit([[0.0], [1.0]], [0, 1], classes=[0, 1])
    with pytest.raises(ValueError, match="not started with"):
        model.partial_fit([[0.0], [1.0]], [1, 2])


def test_a_classifier_has_no_other_likelihood(curve: Curve) -> None:
    with pytest.raises(ValueError, match="a classifier has the likelihood 'auto'"):
        BALIClassifier(**QUICK, likelihood="counts").fit(curve[0], curve[1] > 3)


def test_a_file_of_another_kind(tmp_path: Path) -> None:
    inference(mlp((3, 4, 1)), "gaussian", n_data=5).save(tmp_path / "state")
    with pytest.raises(bali.ModelFileError, match="inference state"):
        bali.load(tmp_path / "state")
