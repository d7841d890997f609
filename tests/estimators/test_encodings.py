"""Columns as places in bins, and as waves."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from numpy.typing import NDArray

from bali.estimators.encodings import N_PLACES, N_WAVES, Encoding, distinct, ways_to_try
from bali.inference.schema import SchemaError
from support.oracles import fast

Array = NDArray[Any]
numbers = st.floats(-1e12, 1e12, allow_subnormal=False)
few_numbers = st.sampled_from([0.0, 1.0, 2.5, -3.0, 1e-9])
columns = st.integers(1, 60).flatmap(lambda n: arrays(np.float64, (n, 1), elements=st.one_of(numbers, few_numbers)))
bins = st.integers(0, 9)


def places(encoding: Encoding, X: Array) -> Array:
    """The part of an encoding that is bins."""
    return encoding(X, X)[:, X.shape[1] :]


def learnt(X: Array, n_bins: int) -> Encoding:
    return Encoding.learn(X, n_bins, np.ones(len(X)))


@fast
@given(columns, bins)
@example(np.array([[0.0], [-5e11], [-1.0], [0.5]]), 3)  # the last edge is within rounding of the one before
def test_places_are_bounded_and_grow_with_the_column(X: Array, n_bins: int) -> None:
    encoding = learnt(X, n_bins)
    beyond = np.concatenate([np.sort(X, 0), X.max(0, keepdims=True) + 1e13])
    found = places(encoding, beyond)
    assert found.shape == (len(beyond), encoding.n_inputs - 1)
    assert np.isfinite(found).all()
    assert (np.abs(found[:-1]) <= 1.0).all()  # of the rows that it was learnt from
    assert (np.diff(found, axis=0) >= 0.0).all()
    assert found.shape[1] <= n_bins


@fast
@given(columns, bins)
def test_the_first_columns_are_the_scaled_ones(X: Array, n_bins: int) -> None:
    scaled = np.arange(float(len(X)))[:, None]
    np.testing.assert_array_equal(learnt(X, n_bins)(X, scaled)[:, :1], scaled)


@fast
@given(columns, bins)
def test_an_encoding_comes_back_from_its_arrays(X: Array, n_bins: int) -> None:
    table = np.concatenate([X, -X, np.zeros_like(X)], 1)
    encoding = learnt(table, n_bins)
    again = Encoding.from_arrays(encoding.to_arrays())
    np.testing.assert_array_equal(again(table, table), encoding(table, table))
    assert (again.n_inputs, again.n_bins, again.name) == (encoding.n_inputs, encoding.n_bins, encoding.name)


def test_values_between_two_edges_are_told_apart_linearly() -> None:
    X = np.linspace(0.0, 1.0, 101)[:, None]
    found = places(learnt(X, 4), np.array([[-1.0], [0.0], [0.125], [0.25], [0.6], [2.0]]))
    expected = np.array(
        [[-9, -1, -1, -1], [-1, -1, -1, -1], [0, -1, -1, -1], [1, -1, -1, -1], [1, 1, -0.2, -1], [1, 1, 1, 9]]
    )
    np.testing.assert_allclose(found, expected, atol=0.5)  # quantiles of 101 rows are near those of the law; ends go on


def test_a_column_of_few_values_has_a_bin_from_each_to_the_next() -> None:
    X = np.array([[1.0], [1.0], [1.0], [2.0], [5.0], [5.0]])
    encoding = learnt(X, 16)
    np.testing.assert_array_equal(encoding.edges[0], [1.0, 2.0, 5.0])
    np.testing.assert_array_equal(places(encoding, X)[[0, 3, 4]], [[-1, -1], [1, -1], [1, 1]])


@pytest.mark.parametrize("values", [[3.5, 3.5, 3.5], [0.0, 1.0, 1.0], [-1e300, -1e300]])
def test_constants_and_two_values_have_no_bins(values: list[float]) -> None:
    encoding = learnt(np.array(values)[:, None], 16)
    assert encoding.n_inputs == 1
    assert encoding.name == "as it is"


def test_neighbours_that_only_rounding_tells_apart_share_an_edge() -> None:
    X = np.array([0.0, 1.0, np.nextafter(1.0, 2.0), 2.0, 1e6])[:, None]
    edges = learnt(X, 16).edges[0]
    assert (np.diff(edges) > 1e-7).all()
    assert np.isfinite(places(learnt(X, 16), X)).all()


def test_bins_hold_about_equal_weight() -> None:
    rng = np.random.default_rng(0)
    X = rng.exponential(size=(4000, 1))
    shares = np.histogram(X[:, 0], learnt(X, 8).edges[0])[0] / 4000
    np.testing.assert_allclose(shares, 1 / 8, atol=0.002)
    weight = np.where(X[:, 0] < 1.0, 3.0, 1.0)
    weighted = Encoding.learn(X, 8, weight)
    found = np.histogram(X[:, 0], weighted.edges[0], weights=weight)[0] / weight.sum()
    np.testing.assert_allclose(found, 1 / 8, atol=0.002)


def test_weights_are_repetitions() -> None:
    X = np.random.default_rng(1).normal(size=(50, 2))
    times = np.arange(50) % 4 + 1
    one, other = Encoding.learn(X, 5, times.astype(float)), learnt(np.repeat(X, times, 0), 5)
    for a, b in zip(one.edges, other.edges, strict=True):
        np.testing.assert_array_equal(a, b)


def test_encodings_that_show_the_same_are_tried_once() -> None:
    X = np.array([[0.0, 1.0], [1.0, 1.0], [1.0, 1.0]])
    assert len(distinct([learnt(X, 0), learnt(X, 16), learnt(X, 32)])) == 1
    wide = np.arange(100.0)[:, None]
    assert len(distinct([learnt(wide, 0), learnt(wide, 16), learnt(wide, 32), learnt(wide, 16)])) == 3


HOSTILE: dict[str, tuple[list[int], list[float]]] = {
    "edges that are missing": ([3], [0.0, 1.0]),
    "edges that are too many": ([2, 0], [0.0, 1.0, 2.0]),
    "a lone edge": ([1], [0.0]),
    "edges out of order": ([3], [0.0, 2.0, 1.0]),
    "edges that are one": ([2], [1.0, 1.0]),
    "edges that are no numbers": ([2], [0.0, float("nan")]),
    "edges without end": ([2], [0.0, float("inf")]),
    "negative counts": ([5, -2], [0.0, 1.0, 2.0]),
}


@pytest.mark.parametrize(("counts", "edges"), HOSTILE.values(), ids=HOSTILE.keys())
def test_hostile_arrays_are_refused(counts: list[int], edges: list[float]) -> None:
    with pytest.raises(SchemaError):
        Encoding.from_arrays({"counts": np.array(counts), "edges": np.array(edges)})


class TestWaves:
    """Of a column's place among the training rows."""

    def waves(self, X: Array) -> Encoding:
        return replace(learnt(X, N_PLACES), n_waves=N_WAVES)

    def test_are_sines_and_cosines_of_the_share_of_rows_below(self) -> None:
        X = np.random.default_rng(0).exponential(size=(5000, 1))
        found = places(self.waves(X), X)
        share = (np.argsort(np.argsort(X[:, 0])) + 0.5) / len(X)
        angle = np.pi * share[:, None] * np.arange(1, N_WAVES + 1)
        np.testing.assert_allclose(found, np.concatenate([np.sin(angle), np.cos(angle)], 1), atol=0.2)
        assert np.abs(found - np.concatenate([np.sin(angle), np.cos(angle)], 1)).mean() < 0.01

    @fast
    @given(columns)
    def test_stay_what_they_are_at_the_ends_beyond_them(self, X: Array) -> None:
        encoding = self.waves(X)
        ends = np.concatenate([X.min(0, keepdims=True), X.max(0, keepdims=True)])
        np.testing.assert_array_equal(places(encoding, ends + np.array([[-1e13], [1e13]])), places(encoding, ends))
        assert encoding.n_inputs == encoding(X, X).shape[1]

    def test_come_back_from_their_arrays(self) -> None:
        X = np.random.default_rng(0).normal(size=(200, 3))
        X[:, 1] = X[:, 1] > 0  # has no place between its two values
        encoding = self.waves(X)
        again = Encoding.from_arrays(encoding.to_arrays(), encoding.n_waves)
        np.testing.assert_array_equal(again(X, X), encoding(X, X))
        assert (again.n_inputs, again.name) == (3 + 2 * 2 * N_WAVES, "with waves")

    def test_are_tried_where_bins_are(self) -> None:
        X = np.random.default_rng(0).normal(size=(200, 2))
        tried = {bins: [way.name for way in ways_to_try(X, X, np.ones(200), bins, None, 0)] for bins in ((0,), (0, 8))}
        assert tried == {(0,): ["as it is"], (0, 8): ["as it is", "with up to 8 bins a column", "with waves"]}
