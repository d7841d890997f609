"""Tables of a few rows, numbers of any size, and a training that is interrupted in its first moments."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
from sklearn.exceptions import ConvergenceWarning

from bali import BALIClassifier, BALIRegressor, HealthWarning
from bali.estimators.input_scaling import FARTHEST, InputScaling
from bali.training.table_fit import Progress


def table(n: int, d: int = 3) -> tuple[np.ndarray, np.ndarray]:
    X = np.random.default_rng(0).normal(size=(n, d))
    return X, X[:, 0] + np.sin(X[:, 1])


def quick() -> BALIRegressor:
    return BALIRegressor(max_iter=60, n_members=2, hidden_layer_sizes=(16,), random_state=0)


@pytest.mark.parametrize("n", [2, 3, 9])
def test_fewer_rows_than_members(n: int) -> None:
    X, y = table(n)
    with pytest.warns(HealthWarning, match=f"fitted to {n} distinct rows"):
        mean, std = BALIRegressor(max_iter=5).fit(X, y).predict(X, return_std=True)
    assert np.isfinite(mean).all()
    assert (std > 0).all()
    with pytest.warns(HealthWarning, match=f"fitted to {n} distinct rows"):
        one_a_class = BALIClassifier(max_iter=5).fit(X, np.arange(n))
    np.testing.assert_allclose(one_a_class.predict_proba(X).sum(1), 1.0, atol=1e-5)


def test_many_rows_of_which_four_are_distinct() -> None:
    X, y = (np.repeat(part, 50, axis=0) for part in table(4))
    with pytest.warns(HealthWarning, match="fitted to 4 distinct rows"):
        assert np.isfinite(BALIRegressor(max_iter=5).fit(X, y).predict(X)).all()
    with pytest.warns(HealthWarning, match="fitted to 4 distinct rows"):
        assert set(BALIClassifier(max_iter=5).fit(X, y > y.mean()).predict(X)) <= {False, True}


@pytest.mark.parametrize("unit", [1e-200, 1e300])
def test_columns_of_any_unit_are_learned_from(unit: float) -> None:
    X, _ = table(60)
    scaling = InputScaling.learn(X * unit)
    np.testing.assert_allclose(scaling(X * unit), InputScaling.learn(X)(X), rtol=1e-9)


def test_constant_columns_of_any_size_stay_constant() -> None:
    X = np.full((34, 3), [0.1, 1e90, -3e-200])
    assert (np.abs(InputScaling.learn(X)(X)) <= 1.0).all()


@pytest.mark.parametrize("unit", [1e-60, 1e25, 1e99])
def test_targets_of_any_unit(unit: float) -> None:
    X, y = table(400)
    mean, std = quick().fit(X, y * unit).predict(X, return_std=True)
    assert np.corrcoef(mean / unit, y)[0, 1] > 0.9
    assert (std / unit > 0).all()
    assert (std / unit < 10).all()


def test_targets_beyond_arithmetic_are_refused() -> None:
    X, y = table(30)
    for unit in (1e200, 1e-200):
        with pytest.raises(ValueError, match="divide it by"):
            quick().fit(X, y * unit)


def test_inputs_out_of_reach_are_refused_and_far_ones_predicted() -> None:
    X, y = table(60)
    model, new = quick().fit(X, y), X[:2].copy()
    for value in (1e300, -1e30, 1e14):
        new[1, 2] = value
        with pytest.raises(ValueError, match=r"X\[1, 2\] is .* away from the training rows"):
            model.predict(new)
    new[1, 2] = FARTHEST / 1e3
    assert np.isfinite(model.predict(new, return_std=True)).all()


def test_a_lone_value_far_out_is_told_and_heavy_tails_are_not() -> None:
    X, y = table(200)
    X[:, 2] = np.exp(2 * X[:, 2])
    with warnings.catch_warnings():
        warnings.simplefilter("error", HealthWarning)
        InputScaling.learn(X)
        rare = (np.arange(200) == 5).astype(float)[:, None]  # a category with one row
        InputScaling.learn(rare)
    X[7, 1] = 1e6
    with pytest.warns(HealthWarning, match="column 1 has a value of 1e\\+06"):
        quick().fit(X, y)


def test_an_interruption_keeps_the_best_posterior_so_far() -> None:
    """Before the first score it is raised, see `tests/training/test_table_fit.py`."""

    def at_the_first_score(progress: Progress) -> None:
        if progress.validation_score is not None:
            raise KeyboardInterrupt

    with pytest.warns(ConvergenceWarning, match="interrupted after 25 steps"):
        model = quick().fit_with_progress(*table(60), at_the_first_score)
    assert model.n_iter_ == 25
    assert np.isfinite(model.predict(table(60)[0])).all()
