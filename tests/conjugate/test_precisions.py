"""What densities, predictions and reports ask of a precision, of either structure, against dense algebra."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from bali.conjugate import mniw
from bali.conjugate.rows import Tokens
from bali.conjugate.symmetric import Diagonal, Symmetric
from support.oracles import array, assert_close, fast
from support.symmetric_cases import BATCHES, KINDS, TYPES, Case, cases, made, some, transposed


@fast
@given(cases)
def test_factors(case: Case) -> None:
    matrix, whole = case.matrix, case.whole
    root = array(mniw.dense_factor(matrix))
    case.assert_close(torch.from_numpy(root @ transposed(root)).to(matrix.dtype), whole)
    case.assert_close(mniw.logdet(matrix), np.asarray(np.linalg.slogdet(whole)[1]))
    case.assert_close(mniw.transposed_factor_times(matrix, right := case.right()), transposed(root) @ array(right))
    case.assert_close(mniw.eigenvalues(matrix).sort(-1).values, np.linalg.eigvalsh(whole))


@fast
@given(cases, st.sampled_from(KINDS))
def test_the_trace_of_a_ratio(case: Case, kind: type[Symmetric]) -> None:
    other = made(kind, case.rng, case.matrix.size, case.whole.shape[:-2], case.matrix.dtype)
    expected = np.trace(np.linalg.inv(case.whole) @ array(other), axis1=-2, axis2=-1)
    case.assert_close(mniw.ratio_trace(case.matrix, other), np.asarray(expected))


@fast
@given(cases, st.integers(1, 4))
def test_row_variance_with_and_without_ones(case: Case, n: int) -> None:
    x = case.right(n).mT.clone()
    x[..., -1] = 1.0
    expected = np.einsum("...ni,...ij,...nj->...n", array(x), np.linalg.inv(case.whole), array(x))
    case.assert_close(mniw.row_variance(case.matrix, x), expected)
    case.assert_close(mniw.row_variance(case.matrix, x[..., :-1]), expected)


@pytest.mark.parametrize("batch", BATCHES, ids=str)
def test_row_variance_of_tokens(batch: tuple[int, ...]) -> None:
    case, index = some(Diagonal, batch=batch), torch.tensor([0, 3, 3, 1])
    rows = torch.nn.functional.one_hot(index, 5).double().expand(*batch, 4, 5)
    assert_close(
        mniw.row_variance(case.matrix, Tokens(index, 5, torch.float64)),
        mniw.row_variance(case.matrix, rows),
    )


@fast
@given(cases)
def test_answers_are_in_the_type_of_the_question(case: Case) -> None:
    for dtype in TYPES:
        right = case.right().to(dtype)
        assert mniw.transposed_factor_times(case.matrix, right).dtype == dtype
        assert mniw.row_variance(case.matrix, right.mT).dtype == dtype
