"""Held-out rows: by content, disjoint, the right share."""

import numpy as np
import pytest
from numpy.typing import NDArray

from bali.training.table_fit import MOST_COPIES, held_out_shares, merged_rows

Array = NDArray[np.float64]


def rows(n: int, d: int = 3, seed: int = 0) -> tuple[Array, Array]:
    rng = np.random.default_rng(seed)
    return rng.normal(size=(n, d)), rng.normal(size=n)


def shares(X: Array, y: Array, n_groups: int, share: float, seed: int = 0, weight: Array | None = None) -> Array:
    return held_out_shares(X, y, np.ones(len(X)) if weight is None else weight, n_groups, share, seed)


@pytest.mark.parametrize("n_groups", [1, 3, 10])
def test_groups_hold_out_disjoint_shares(n_groups: int) -> None:
    found = shares(*rows(500), n_groups, 0.1)
    assert found.shape == (n_groups, 500)
    assert set(np.unique(found)) == {0.0, 1.0}
    assert (found.sum(1) == 50).all()
    assert found.sum(0).max() == 1


def test_a_place_depends_on_the_content_alone() -> None:
    X, y = rows(200)
    order = np.random.default_rng(1).permutation(200)
    found = shares(X, y, 3, 0.1, seed=5)
    np.testing.assert_array_equal(found[:, order], shares(X[order], y[order], 3, 0.1, seed=5))
    assert (found != shares(X, y, 3, 0.1, seed=6)).any()


def test_copies_are_held_out_one_by_one() -> None:
    X, y = rows(300)
    weight = (np.arange(300) % 4 + 1).astype(float)
    found = shares(X, y, 2, 0.2, weight=weight)
    copies = found * weight
    np.testing.assert_allclose(copies, np.round(copies), atol=1e-12)
    assert (copies.sum(1) == round(0.2 * weight.sum())).all()
    assert (found.sum(0) <= 1.0 + 1e-12).all()
    assert ((found > 0) & (found < 1)).any()


@pytest.mark.parametrize("weight", [np.linspace(0.5, 2.0, 100), np.full(100, 3.0 * MOST_COPIES)])
def test_rows_of_other_weights_are_held_out_whole(weight: Array) -> None:
    found = shares(*rows(100), 2, 0.1, weight=weight)
    assert set(np.unique(found)) == {0.0, 1.0}
    assert (found.sum(1) == 10).all()


def test_negative_zero_is_zero() -> None:
    X, y = rows(40)
    X[3] = 0.0
    minus = X.copy()
    minus[3] = -0.0
    np.testing.assert_array_equal(shares(X, y, 2, 0.2), shares(minus, y, 2, 0.2))


@pytest.mark.parametrize("n", [2, 3, 4])
def test_a_few_rows_leave_something_to_train_on_and_to_validate(n: int) -> None:
    found = shares(*rows(n), 2, 0.1)
    assert (found.sum(1) <= n // 2).all()
    assert (found.sum(1) >= 1).all()


def test_the_rows_held_out_are_spread_evenly() -> None:
    X = np.arange(2000.0)[:, None]  # consecutive numbers differ in few bits
    halves = shares(X, np.zeros(2000), 1, 0.5)[0].reshape(2, 1000).sum(1)
    # 1000 of 2000 without replacement: the first half's count has standard deviation 11.2.
    assert abs(halves[0] - 500) < 5 * 11.2


def test_merging_adds_weights_and_forgets_the_order() -> None:
    X, y = rows(30)
    times = np.arange(30) % 3 + 1  # of each row
    order = np.random.default_rng(0).permutation(times.sum())
    repeated = (np.repeat(X, times, 0)[order], np.repeat(y[:, None], times, 0)[order], np.ones(times.sum()))
    for one, other in zip(merged_rows(X, y[:, None], times.astype(float)), merged_rows(*repeated), strict=True):
        np.testing.assert_array_equal(one, other)
    merged_X, merged_y, weight = merged_rows(*repeated)
    assert weight.sum() == times.sum()
    for row, target, w in zip(merged_X, merged_y[:, 0], weight, strict=True):
        source = np.flatnonzero((row == X).all(1) & (y == target))
        assert len(source) == 1
        assert times[source[0]] == w
