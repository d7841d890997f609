"""Symmetric matrices by structure: every method of both kinds against the dense matrix, in batches and in either type."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from bali.conjugate.linalg import NumericalError, NumericalRepairWarning, Repairs
from bali.conjugate.rows import Tokens
from bali.conjugate.symmetric import Dense, Diagonal, Symmetric, as_symmetric, average
from support.oracles import Array, array, assert_close, fast, normal, positive_definite, seeds
from support.tolerances import EXACT, FLOAT32, FLOAT32_STEPS

KINDS: list[type[Symmetric]] = [Dense, Diagonal]
BATCHES: list[tuple[int, ...]] = [(), (3,), (2, 3)]
TYPES = {torch.float64: EXACT, torch.float32: FLOAT32_STEPS}  # with how near methods come to the dense matrix


def made(
    kind: type[Symmetric], rng: np.random.Generator, size: int, batch: tuple[int, ...], dtype: torch.dtype
) -> Symmetric:
    whole = positive_definite(rng, size, batch)
    entries = whole if kind is Dense else whole.diagonal(dim1=-2, dim2=-1).clone()
    return kind(entries.to(dtype), "a matrix")


class Case(NamedTuple):
    """A matrix of one kind, its entries in NumPy, and what it is to be multiplied with."""

    matrix: Symmetric
    whole: Array
    rng: np.random.Generator
    tolerance: float

    def right(self, columns: int = 2) -> Tensor:
        return normal(self.rng, *self.whole.shape[:-1], columns).to(self.matrix.dtype)

    def assert_close(self, found: Tensor | Symmetric, expected: Array) -> None:
        assert found.dtype == self.matrix.dtype
        assert_close(found, expected, self.tolerance)


def build(kind: type[Symmetric], seed: int, size: int, batch: tuple[int, ...], dtype: torch.dtype) -> Case:
    rng = np.random.default_rng(seed)
    matrix = made(kind, rng, size, batch, dtype)
    return Case(matrix, array(matrix.dense()).copy(), rng, TYPES[dtype])


cases = st.builds(
    build, st.sampled_from(KINDS), seeds, st.integers(1, 12), st.sampled_from(BATCHES), st.sampled_from(list(TYPES))
)
each_kind = pytest.mark.parametrize("kind", KINDS)


def some(kind: type[Symmetric], seed: int = 0, batch: tuple[int, ...] = ()) -> Case:
    return build(kind, seed, 5, batch, torch.float64)


def transposed(values: Array) -> Array:
    return np.swapaxes(values, -1, -2)


# --- a matrix -------------------------------------------------------------------------------------------------------


@fast
@given(cases)
def test_entries(case: Case) -> None:
    matrix, whole = case.matrix, case.whole
    assert matrix.size == whole.shape[-1]
    case.assert_close(matrix.diagonal(), np.diagonal(whole, axis1=-2, axis2=-1))
    case.assert_close(matrix.eigenvalues().sort(-1).values, np.linalg.eigvalsh(whole))
    case.assert_close(matrix.times(right := case.right()), whole @ array(right))


@fast
@given(cases, st.sampled_from(KINDS))
def test_sums_are_of_the_first_ones_type_and_name(case: Case, kind: type[Symmetric]) -> None:
    """Also of a batch with one matrix for all of it, on either side."""
    size, lead = case.matrix.size, case.whole.shape[:-2]
    for batch in {(), lead}:
        for dtype in TYPES:
            other = made(kind, case.rng, size, batch, dtype)
            kept = other.values.clone(), case.matrix.values.clone()
            found = case.matrix.plus(other)
            case.assert_close(found, case.whole + array(other))
            assert found.name == "a matrix"
            assert isinstance(found, Diagonal) == (type(case.matrix) is kind is Diagonal)
            assert torch.equal(other.values, kept[0])
            assert torch.equal(case.matrix.values, kept[1])
            other_way = other.plus(case.matrix)
            assert other_way.dtype == dtype
            assert_close(other_way, array(other) + case.whole, FLOAT32)


@fast
@given(cases)
def test_multiples_by_a_number_or_one_for_each(case: Case) -> None:
    """Also after its factor was asked for, which is then another one."""
    factors = torch.from_numpy(case.rng.uniform(0.5, 2.0, size=case.whole.shape[:-2])).to(case.matrix.dtype)
    expected = case.whole
    for factor in (2.5, factors):
        before = case.matrix.times(case.right()), case.matrix.logdet()
        case.matrix.scale_(factor)
        expected = expected * (array(factor)[..., None, None] if isinstance(factor, Tensor) else factor)
        case.assert_close(case.matrix, expected)
        case.assert_close(case.matrix.times(right := case.right()), expected @ array(right))
        case.assert_close(case.matrix.logdet(), np.asarray(np.linalg.slogdet(expected)[1]))
        assert len(before) == 2


@fast
@given(cases)
def test_packed_numbers_tell_it(case: Case) -> None:
    packed = case.matrix.pack()
    found = case.matrix.unpack(iter([part.clone() for part in packed]))
    case.assert_close(found, case.whole)
    assert type(found) is type(case.matrix)
    assert found.name == "a matrix"
    assert sum(part.numel() for part in packed) <= case.matrix.values.numel()


@fast
@given(cases)
def test_conversion(case: Case) -> None:
    for dtype in TYPES:
        found = case.matrix.to(dtype)
        assert found.dtype == dtype
        assert type(found) is type(case.matrix)
        assert found.name == "a matrix"
        assert_close(found, case.whole, FLOAT32)
    assert case.matrix.to(case.matrix.dtype) is case.matrix


# --- a precision ----------------------------------------------------------------------------------------------------


@fast
@given(cases)
def test_factors(case: Case) -> None:
    matrix, whole = case.matrix, case.whole
    root = array(matrix.dense_factor())
    case.assert_close(torch.from_numpy(root @ transposed(root)).to(matrix.dtype), whole)
    case.assert_close(matrix.factor_diagonal(), np.diagonal(root, axis1=-2, axis2=-1))
    case.assert_close(matrix.logdet(), np.asarray(np.linalg.slogdet(whole)[1]))
    case.assert_close(matrix.transposed_factor_times(right := case.right()), transposed(root) @ array(right))


@fast
@given(cases, st.integers(1, 20))
def test_solves(case: Case, columns: int) -> None:
    matrix, right = case.matrix, case.right(columns)
    inverse, root = np.linalg.inv(case.whole), np.linalg.inv(array(matrix.dense_factor()))
    case.assert_close(matrix.half_solve(right), root @ array(right))
    case.assert_close(matrix.transposed_half_solve(right), transposed(root) @ array(right))
    case.assert_close(matrix.solve(right), inverse @ array(right))
    matrix.keep_inverse()
    case.assert_close(matrix.solve(right), inverse @ array(right))


@fast
@given(cases)
def test_answers_are_in_the_type_of_the_question(case: Case) -> None:
    methods: list[Callable[[Tensor], Tensor]] = [
        case.matrix.times,
        case.matrix.half_solve,
        case.matrix.transposed_half_solve,
        case.matrix.transposed_factor_times,
        case.matrix.solve,
    ]
    for keeps_inverse in (False, True):
        if keeps_inverse:
            case.matrix.keep_inverse()
        for method in methods:
            one, two = (method(case.right().to(dtype)) for dtype in TYPES)
            assert [one.dtype, two.dtype] == list(TYPES)
        for dtype in TYPES:
            assert case.matrix.factor_as(dtype).dtype == dtype
            assert case.matrix.row_variance(case.right().mT.to(dtype)).dtype == dtype


@fast
@given(cases, st.sampled_from(KINDS))
def test_the_trace_of_a_ratio(case: Case, kind: type[Symmetric]) -> None:
    other = made(kind, case.rng, case.matrix.size, case.whole.shape[:-2], case.matrix.dtype)
    expected = np.trace(np.linalg.inv(case.whole) @ array(other), axis1=-2, axis2=-1)
    case.assert_close(case.matrix.ratio_trace(other), np.asarray(expected))


@fast
@given(cases, st.integers(1, 4))
def test_row_variance_with_and_without_ones(case: Case, n: int) -> None:
    x = case.right(n).mT.clone()
    x[..., -1] = 1.0
    expected = np.einsum("...ni,...ij,...nj->...n", array(x), np.linalg.inv(case.whole), array(x))
    case.assert_close(case.matrix.row_variance(x), expected)
    case.assert_close(case.matrix.row_variance(x[..., :-1]), expected)


@pytest.mark.parametrize("batch", BATCHES, ids=str)
def test_row_variance_of_tokens(batch: tuple[int, ...]) -> None:
    case, index = some(Diagonal, batch=batch), torch.tensor([0, 3, 3, 1])
    rows = torch.nn.functional.one_hot(index, 5).double().expand(*batch, 4, 5)
    assert_close(case.matrix.row_variance(Tokens(index, 5, torch.float64)), case.matrix.row_variance(rows))


# --- what is kept ---------------------------------------------------------------------------------------------------


@each_kind
def test_factors_are_computed_once_and_can_be_forgotten(kind: type[Symmetric]) -> None:
    matrix = some(kind).matrix
    first = matrix.factor
    assert matrix.factor is first
    assert matrix.factor_as(torch.float32) is matrix.factor_as(torch.float32)
    matrix.forget_factor()
    assert matrix.factor is not first
    assert torch.equal(matrix.factor, first)


@each_kind
def test_a_factor_of_elsewhere_is_taken_over(kind: type[Symmetric]) -> None:
    one, two = some(kind).matrix, some(kind, seed=1).matrix
    one.adopt_factor(two.factor)
    assert one.factor is two.factor


@each_kind
def test_copies_hold_no_factors(kind: type[Symmetric]) -> None:
    """They are as large as the matrix, and computed again where they are needed."""
    matrix = some(kind).matrix
    alone = len(pickle.dumps(matrix))
    factor = matrix.factor
    assert len(pickle.dumps(matrix)) == alone
    copied = copy.deepcopy(matrix)
    assert torch.equal(copied.values, matrix.values)
    assert copied.factor is not factor
    assert torch.equal(copied.factor, factor)


# --- what is no precision -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("bad", [0.0, -1.0, torch.nan, torch.inf])
@each_kind
def test_what_is_not_positive_and_finite_has_no_factor(kind: type[Symmetric], bad: float) -> None:
    matrix = some(kind).matrix
    matrix.values[(2,) if kind is Diagonal else (2, 2)] = bad
    if kind is Dense and bad == 0.0:
        matrix.values[2] = matrix.values[:, 2] = -1.0
    with pytest.raises(NumericalError, match="a matrix"):
        matrix.factor  # noqa: B018


def test_repairs_are_noted_under_its_name() -> None:
    repairs = Repairs()
    nearly = torch.tensor([[1.0, 1.0 + 1e-6], [1.0 + 1e-6, 1.0]], dtype=torch.float64)
    with pytest.warns(NumericalRepairWarning, match="layer 'a': precision"):
        Dense(nearly, "layer 'a': precision", repairs).factor  # noqa: B018
    assert repairs.count == {"layer 'a': precision": 1}


# --- making and averaging -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("variance", [2.0, torch.tensor([1.0, 4.0])], ids=["one", "each"])
def test_a_diagonal_of_one_variance(variance: Any) -> None:
    found = Diagonal.of_variance(variance, 3, torch.float64, name="prior")
    expected = np.asarray(1.0 / np.asarray(variance, dtype=np.float64))[..., None, None] * np.eye(3)
    assert_close(found, expected)
    assert (found.name, found.dtype) == ("prior", torch.float64)


def test_plain_tensors_become_dense_and_others_stay() -> None:
    matrix = some(Diagonal).matrix
    assert as_symmetric(matrix, "other", None) is matrix
    found = as_symmetric(torch.eye(2), "other", None)
    assert isinstance(found, Dense)
    assert found.name == "other"


@each_kind
@pytest.mark.parametrize("rate", [0.25, 1.0])
def test_averages(kind: type[Symmetric], rate: float) -> None:
    old, new = some(kind).matrix, some(kind, seed=1).matrix
    kept, expected = old.values.clone(), (1 - rate) * array(old) + rate * array(new)
    found = average(old, new, rate)
    assert type(found) is kind
    assert_close(found, expected)
    assert torch.equal(old.values, kept)
    assert average(None, found, rate) is found


@each_kind
def test_the_average_of_one_for_all_and_one_for_each(kind: type[Symmetric]) -> None:
    """The first batch may be shared by members, and later ones not."""
    shared, own = some(kind).matrix, some(kind, seed=1, batch=(3,)).matrix
    expected = 0.75 * array(shared) + 0.25 * array(own)
    assert_close(average(shared, own, 0.25), expected)
