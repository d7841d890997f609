"""Validation rows: by content, disjoint, the right share."""

import numpy as np
import pytest

from bali.training.folds import MAX_HELD_OUT, MAX_SHARED, merged_rows, validation_masks


def rows(n: int, d: int = 3, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    return rng.normal(size=(n, d)), rng.normal(size=n)


@pytest.mark.parametrize("n_members", [1, 3, 10])
def test_members_hold_out_disjoint_shares(n_members: int) -> None:
    masks = validation_masks(*rows(500), n_members, 0.1, seed=0)
    assert masks.shape == (n_members, 500)
    assert (masks.sum(1) == 50).all()
    assert masks.sum(0).max() == 1


def test_a_place_depends_on_the_content_alone() -> None:
    X, y = rows(200)
    order = np.random.default_rng(1).permutation(200)
    masks = validation_masks(X, y, 3, 0.1, seed=5)
    np.testing.assert_array_equal(masks[:, order], validation_masks(X[order], y[order], 3, 0.1, seed=5))
    assert (masks != validation_masks(X, y, 3, 0.1, seed=6)).any()


def test_copies_stay_together() -> None:
    X, y = rows(60)
    times = np.arange(60) % 4 + 1
    single = validation_masks(X, y, 4, 0.2, seed=0)
    repeated = validation_masks(np.repeat(X, times, 0), np.repeat(y, times), 4, 0.2, seed=0)
    np.testing.assert_array_equal(np.repeat(single, times, axis=1), repeated)


def test_negative_zero_is_zero() -> None:
    X, y = rows(40)
    X[3] = 0.0
    minus = X.copy()
    minus[3] = -0.0
    np.testing.assert_array_equal(validation_masks(X, y, 2, 0.2, 0), validation_masks(minus, y, 2, 0.2, 0))


@pytest.mark.parametrize("n", [1, 2, 3, 4])
def test_a_few_rows_leave_something_to_train_on_and_to_validate(n: int) -> None:
    masks = validation_masks(*rows(n), 5, 0.1, seed=0)
    assert (masks.sum(1) <= n // 2).all()
    assert (masks.sum(1) >= min(n // 2, 1)).all()
    assert np.ptp(masks.sum(0)) <= 1  # every row about as often


def test_the_rows_held_out_are_spread_evenly() -> None:
    X = np.arange(2000.0)[:, None]  # consecutive numbers differ in few bits
    masks = validation_masks(X, np.zeros(2000), 1, 0.5, seed=0)
    halves = masks[0].reshape(2, 1000).sum(1)
    # 1000 of 2000 without replacement: the first half's count has standard deviation 11.2.
    assert abs(halves[0] - 500) < 5 * 11.2


def test_long_tables_hold_out_no_more_than_is_useful() -> None:
    masks = validation_masks(*rows(100_000, d=1), 3, 0.1, seed=0)
    assert (masks.sum(1) == MAX_HELD_OUT).all()


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


def test_shared_parts_are_the_same_for_all_members() -> None:
    X, y = rows(500)
    masks = validation_masks(X, y, 3, 0.1, seed=0, shared=True)
    assert masks.sum(1).tolist() == [50, 50, 50]
    np.testing.assert_array_equal(masks, np.repeat(masks[:1], 3, 0))
    assert validation_masks(*rows(6 * MAX_SHARED), 2, 0.5, seed=0, shared=True)[0].sum() == MAX_SHARED
