"""The rules behind the estimators' defaults."""

from __future__ import annotations

import pytest

from bali.estimators import defaults


def test_effective_size_counts_all_rows_of_a_small_table() -> None:
    assert defaults.effective_size(500) == 500
    assert defaults.effective_size(2000) == 2000
    assert defaults.effective_size(8000) == pytest.approx(4000)


def test_classes_count_for_less_and_never_for_more_than_there_are() -> None:
    assert [defaults.effective_size(n, classes=True) for n in (50, 400, 2000)] == [50, 400, 400]
    sizes = [defaults.effective_size(n, classes=True) for n in (1e4, 1e5, 1e6)]
    assert sizes == sorted(sizes)
    assert sizes[-1] < 1e5


def test_small_tables_get_more_members() -> None:
    assert [defaults.members(n, 8) for n in (20, 1000, 1001, 1e6)] == [10, 10, 5, 5]
    assert defaults.members(60_000, 784) == 3


def test_networks_grow_with_the_table() -> None:
    assert defaults.hidden_layer_sizes(1000, 500) == (50, 50)
    assert defaults.hidden_layer_sizes(40_000, 9) == (100, 100)
    assert defaults.hidden_layer_sizes(60_000, 784) == (256, 256)


def candidates(n_rows: float, n_columns: int) -> list[tuple[float, bool]]:
    return [(c.variance, c.linear) for c in defaults.candidates(n_rows, n_columns, classes=False)]


def test_functions_of_few_variables_may_be_rough() -> None:
    assert max(candidates(300, 1))[0] > 10 * max(candidates(300, 8))[0]
    assert defaults.initial_variance(1.0) == defaults.initial_variance(40.0) == 1.0
    assert defaults.initial_variance(4000.0) == pytest.approx(10.0)


def test_with_few_rows_a_column_a_regression_may_be_linear() -> None:
    assert candidates(80, 8) == [(1.0, False), (40.0, False)]
    assert candidates(79, 8) == candidates(9_999, 1000) == [(3.0, True), (1.0, False), (40.0, False)]
    assert candidates(10_000, 1000) == [(10.0, False)]  # images
    assert [c.variance for c in defaults.candidates(500, 784, classes=True)] == [10.0]
    assert (defaults.members(500, 784, classes=True), defaults.members(500, 784)) == (3, 10)
    assert [c.linear for c in defaults.candidates(79, 8, classes=True)] == [False, False]
