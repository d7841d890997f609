"""Symmetric matrices by structure: every method of both kinds against the dense matrix, in batches and in either type."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from bali.conjugate.linalg import NumericalError, NumericalRepairWarning, Repairs
from bali.conjugate.symmetric import Dense, Diagonal, Symmetric, as_symmetric, average
from support.oracles import array, assert_close, fast
from support.symmetric_cases import KINDS, TYPES, Case, cases, each_kind, made, some, transposed
from support.tolerances import FLOAT32

# --- a matrix -------------------------------------------------------------------------------------------------------


@fast
@given(cases)
def test_entries(case: Case) -> None:
    matrix, whole = case.matrix, case.whole
    assert matrix.size == whole.shape[-1]
    case.assert_close(matrix.diagonal(), np.diagonal(whole, axis1=-2, axis2=-1))
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
        before = case.matrix.times(case.right()), case.matrix.solve(case.right())
        case.matrix.scale_(factor)
        expected = expected * (array(factor)[..., None, None] if isinstance(factor, Tensor) else factor)
        case.assert_close(case.matrix, expected)
        case.assert_close(case.matrix.times(right := case.right()), expected @ array(right))
        case.assert_close(case.matrix.solve(right), np.linalg.inv(expected) @ array(right))
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
@given(cases, st.integers(1, 20))
def test_solves(case: Case, columns: int) -> None:
    matrix, right = case.matrix, case.right(columns)
    inverse, root = np.linalg.inv(case.whole), np.linalg.inv(np.linalg.cholesky(case.whole))
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
