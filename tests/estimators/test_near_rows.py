"""What near rows say, against loops, and models that are shown it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

import bali
from bali.estimators.near_rows import FEW, MANY, NearRows

Array = NDArray[Any]
QUICK: dict[str, Any] = {"hidden_layer_sizes": (12,), "n_members": 2, "max_iter": 60, "random_state": 0}


def by_loops(near: NearRows, scaled: Array, own: Array | None = None) -> Array:
    """The definition, row by row; `own` are the numbers of the rows among the near rows, which count once less."""
    found = []
    for number, row in enumerate(scaled):
        distance = np.sqrt(((near.places - row * near.scales) ** 2).sum(1))
        weight = near.weight.copy()
        if own is not None:
            weight[own[number]] -= 1.0
        order = [i for i in np.argsort(distance, kind="stable") if weight[i] > 0][:MANY]
        d, w, y = distance[order], weight[order], near.targets[order]
        close = w / (d + 1e-3)
        means = [np.average(y[:n], axis=0, weights=close[:n]) for n in (FEW, MANY)]
        spread = np.sqrt(np.average((y - np.average(y, axis=0, weights=w)) ** 2, axis=0, weights=w))
        found.append(np.concatenate([*means, spread, [np.log(d[0] + 0.1)]]))
    result: Array = (np.array(found) - near.moments[0]) / near.moments[1]
    return result


def table(n: int = 80, seed: int = 0) -> tuple[Array, Array, Array]:
    rng = np.random.default_rng(seed)
    X, y = rng.normal(size=(n, 3)), rng.normal(size=(n, 2))
    return X, y, np.where(np.arange(n) % 5 == 0, 2.0, 1.0)


def shown(near: NearRows, X: Array, targets: Array | None = None) -> Array:
    found: Array = near(torch.from_numpy(X), None if targets is None else torch.from_numpy(targets)).numpy()
    return found


def test_it_is_the_definition_for_training_rows_and_for_new_ones() -> None:
    X, y, weight = table()
    near = NearRows.learn(X, y, weight, 0)
    np.testing.assert_allclose(shown(near, X, y), by_loops(near, X, np.arange(80)), rtol=1e-9, atol=1e-9)
    new = table(30, 1)[0]
    np.testing.assert_allclose(shown(near, new), by_loops(near, new), rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(weight @ shown(near, X, y) / weight.sum(), 0.0, atol=1e-9)


def test_no_row_sees_its_own_target() -> None:
    X, y, _ = table()
    near = NearRows.learn(X, y, np.ones(80), 0)
    other = y.copy()
    other[7] += 100.0
    moved = NearRows(near.places, other, near.weight, near.scales, near.moments)
    before, after = shown(near, X, y), shown(moved, X, other)
    np.testing.assert_array_equal(before[7], after[7])
    assert np.abs(before - after).max() > 1.0  # its neighbours see it


def test_a_row_given_twice_sees_itself_once() -> None:
    X, y, weight = table()
    near = NearRows.learn(X, y, weight, 0)
    twice, once = shown(near, X[:1], y[:1])[0], shown(near, X[1:2], y[1:2])[0]
    nearest = near.moments[0, -1] + near.moments[1, -1] * np.array([twice[-1], once[-1]])
    assert nearest[0] == pytest.approx(np.log(0.1))
    assert nearest[1] > np.log(0.1) + 0.01


def test_weights_that_are_no_counts_leave_a_row_out_whole() -> None:
    X, y, weight = table()
    near = NearRows.learn(X, y, weight + 0.5, 0)
    distance = np.exp(near.moments[0, -1] + near.moments[1, -1] * shown(near, X, y)[:, -1]) - 0.1
    assert distance.min() > 1e-6


def test_columns_that_say_nothing_have_small_scales() -> None:
    rng = np.random.default_rng(0)
    X = rng.normal(size=(600, 4))
    near = NearRows.learn(X, np.sin(4 * X[:, :1]), np.ones(600), 0)
    assert near.scales[0] > 4 * near.scales[1:].max()


def test_it_has_the_derivatives_of_finite_differences() -> None:
    X, y, weight = table()
    near = NearRows.learn(X, y, weight, 0)
    at = torch.tensor(table(4, 2)[0], requires_grad=True)
    (gradient,) = torch.autograd.grad(near(at).sum(), at)
    step, flat = 1e-6, at.detach().numpy()
    for column in range(3):
        high, low = (shown(near, flat + sign * step * np.eye(3)[column]).sum(1) for sign in (1, -1))
        np.testing.assert_allclose(gradient[:, column].numpy(), (high - low) / (2 * step), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("rows", [np.zeros((20, 2)), np.repeat(np.arange(4.0)[:, None], 5, 0)])
def test_rows_that_are_all_alike_give_numbers(rows: Array) -> None:
    y = np.arange(20.0)[:, None]
    near = NearRows.learn(rows, y, np.ones(20), 0)
    assert np.isfinite(shown(near, rows, y)).all()
    assert np.isfinite(shown(near, rows + 1e12)).all()


def groups(n: int, seed: int, n_groups: int = 200) -> tuple[Array, Array]:
    """Groups of rows with a level of their own each, which is no smooth function of the column that tells the group."""
    level, rng = np.random.default_rng(0).normal(size=n_groups), np.random.default_rng(seed)
    code = rng.integers(n_groups, size=n)
    X = np.column_stack([code, rng.normal(size=(n, 2))])
    return X, 3 * level[code] + X[:, 1] + 0.3 * rng.normal(size=n)


def test_where_near_rows_tell_more_than_columns_they_are_chosen() -> None:
    (X, y), (new, wanted) = groups(1500, 1), groups(500, 2)
    few = QUICK | {"max_iter": 200, "hidden_layer_sizes": (32,)}
    ours, without = bali.BALIRegressor(**few).fit(X, y), bali.BALIRegressor(**few, near_rows=False).fit(X, y)
    assert ours.encoding_ == ["with near rows"]
    assert "with near rows" not in without.candidate_scores_
    errors = [float(np.sqrt(np.mean((model.predict(new) - wanted) ** 2))) for model in (ours, without)]
    assert errors[0] < 0.5 * errors[1]
    likelihoods = [float(model.pred_dist(new).log_prob(torch.tensor(wanted[:, None])).mean()) for model in (ours, without)]
    assert likelihoods[0] > likelihoods[1] + 0.5


def only_near(X: Array, y: Array, **more: Any) -> Any:
    """A model that was kept with near rows, whatever else it was tried with."""
    for seed in range(5):
        kind = bali.BALIClassifier if y.dtype.kind == "i" else bali.BALIRegressor
        model: Any = kind(**QUICK | {"random_state": seed, "n_bins": 0, "near_rows": True} | more).fit(X, y)
        if "with near rows" in model.encoding_:
            return model
    raise AssertionError("near rows were never kept")


def test_a_model_with_near_rows_comes_back_from_its_file_and_learns_on(tmp_path: Path) -> None:
    X, y = groups(600, 3)
    model = only_near(X, y)
    model.save(tmp_path / "model.bali")
    again: Any = bali.load(tmp_path / "model.bali")
    np.testing.assert_array_equal(again.predict(X[:50]), model.predict(X[:50]))
    assert again.encoding_ == model.encoding_
    taught = again.condition(X[:20], y[:20] + 5.0).predict(X[:20]).mean.numpy()[:, 0]
    assert (taught > model.predict(X[:20])).mean() > 0.8
    again.partial_fit(X[:100], y[:100])
    assert np.isfinite(again.predict(X)).all()


def test_derivatives_of_predictions_go_through_near_rows() -> None:
    X, y = groups(300, 4)
    model = only_near(X, y)
    start = model.output_regression()
    at = torch.tensor(X[:3] + 0.3, requires_grad=True)
    (gradient,) = torch.autograd.grad(start.joint(start.body.rows(at))[0].sum(), at)
    step, flat = 1e-3, at.detach().numpy()
    for column in range(3):
        shifted = [flat + sign * step * np.eye(3)[column] for sign in (1, -1)]
        values = [start.joint(start.body.rows(torch.tensor(rows)))[0].numpy()[:, 0] for rows in shifted]
        slope = (values[0] - values[1]) / (2 * step)
        np.testing.assert_allclose(gradient[:, column].numpy(), slope, rtol=0.05, atol=0.02 * np.abs(slope).max())


def test_classes_of_near_rows(tmp_path: Path) -> None:
    X, y = groups(600, 5, 40)
    labels = np.digitize(y, [-2.0, 2.0])
    model = only_near(X, labels)
    (near,) = (encoding.near for encoding in model.encodings_ if encoding.near is not None)
    assert near.targets.shape[1] == 2
    model.save(tmp_path / "model.bali")
    again: Any = bali.load(tmp_path / "model.bali")
    np.testing.assert_array_equal(again.predict_proba(X), model.predict_proba(X))
    assert model.score(X, labels) > 0.6


def test_near_rows_are_asked_for_where_they_mean_something() -> None:
    X, y = groups(60, 6)
    with pytest.raises(ValueError, match="near_rows must be True, False or None"):
        bali.BALIRegressor(**QUICK, near_rows="yes").fit(X, y)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="near_rows are for numbers with Gaussian noise"):
        bali.BALIRegressor(**QUICK, near_rows=True, likelihood="poisson").fit(X, np.abs(y).round())
