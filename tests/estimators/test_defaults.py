"""The rules behind the estimators' defaults."""

from __future__ import annotations

import pytest

from bali import HealthWarning
from bali.estimators import defaults

SIZES = (2, 10, 400, 4_999, 5_000, 9_999, 10_000, 10**6)


def test_networks_grow_with_the_table() -> None:
    sizes = [defaults.hidden_layer_sizes(n, 9) for n in SIZES]
    assert sizes == sorted(sizes)
    assert defaults.hidden_layer_sizes(500, 784) > sizes[-1]


def test_bins_are_tried_beside_the_columns_themselves_unless_columns_are_like_pixels() -> None:
    for n in SIZES:
        tried = defaults.bins(n, 9)
        assert tried[0] == 0
        assert (len(tried) > 1) == (n >= defaults.ROWS_PER_BIN * defaults.LEAST_BINS)
        assert defaults.bins(n, 784) == (0,)


@pytest.mark.parametrize("n", SIZES)
def test_every_group_of_held_out_rows_has_two_members_and_some_rows_to_train_on(n: int) -> None:
    assert defaults.members(n) >= 2 * defaults.groups(n)
    assert 0.0 < defaults.held_out_share(n) * defaults.groups(n) <= 0.6
    assert defaults.held_out_share(n) * n <= max(0.1 * n, 1) <= n
    assert defaults.held_out_share(n) * n <= defaults.MOST_HELD_OUT


def test_small_tables_get_more_members_and_large_ones_longer_courses() -> None:
    members = [defaults.members(n) for n in SIZES]
    assert members == sorted(members, reverse=True)
    steps = [defaults.course(n).n_steps for n in SIZES]
    assert steps == sorted(steps)
    assert steps[-1] <= 20 * steps[0]


def test_few_rows_are_told() -> None:
    with pytest.warns(HealthWarning, match="fitted to 1 distinct row:"):
        defaults.warn_of_few_rows(1)
    with pytest.warns(HealthWarning, match="fitted to 9 distinct rows"):
        defaults.warn_of_few_rows(9)
    defaults.warn_of_few_rows(10)
