"""The Cholesky gate: silent on sound matrices, sparing with broken ones, loud about hopeless ones."""

import math
import warnings

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from bali.conjugate import linalg
from bali.conjugate.linalg import NumericalError, NumericalRepairWarning, Repairs
from support.oracles import array, assert_close, fast, normal, positive_definite, seeds

D = 5


def slightly_indefinite(rng: np.random.Generator, depth: float, d: int = D) -> Tensor:
    """Unit diagonal, smallest eigenvalue −depth: the smallest jitter that repairs it is depth itself."""
    ones = torch.ones(d, d, dtype=torch.float64) / d
    signs = torch.from_numpy(rng.choice([-1.0, 1.0], size=d))
    b = (1.0 + depth) / (1.0 - 1.0 / d)  # eigenvalues: −depth once, −depth + b otherwise
    return signs[:, None] * (b * (torch.eye(d, dtype=torch.float64) - ones) - depth * torch.eye(d)) * signs


def quiet_cholesky(matrix: Tensor) -> tuple[Tensor, float]:
    """The repaired factor and the jitter that was used."""
    repairs = Repairs()
    with pytest.warns(NumericalRepairWarning):
        factor = linalg.cholesky(matrix, "A", repairs)
    return factor, repairs.largest["A"]


# --- sound matrices -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("batch", [(), (1,), (2, 3), (0,)], ids=str)
def test_sound_matrices_are_untouched(batch: tuple[int, ...], dtype: torch.dtype) -> None:
    matrix = positive_definite(np.random.default_rng(0), D, batch).to(dtype)
    repairs = Repairs()
    assert torch.equal(linalg.cholesky(matrix, "A", repairs), torch.linalg.cholesky(matrix))
    assert repairs == Repairs()


@fast
@given(seeds, st.integers(1, 6))
def test_nearly_singular_but_sound_is_untouched(seed: int, d: int) -> None:
    a = normal(np.random.default_rng(seed), d, d)
    matrix = a @ a.mT + 1e-9 * torch.eye(d, dtype=torch.float64)
    assert torch.equal(linalg.cholesky(matrix), torch.linalg.cholesky(matrix))


@fast
@given(seeds, st.integers(1, 6), st.integers(1, 12), st.sampled_from([(), (2,), (2, 3)]))
def test_triangular_algebra_is_dense_algebra(seed: int, d: int, columns: int, batch: tuple[int, ...]) -> None:
    rng = np.random.default_rng(seed)
    matrix, right = positive_definite(rng, d, batch), normal(rng, *batch, d, columns)
    factor = linalg.cholesky(matrix)
    half, other_half = linalg.half_solve(factor, right), linalg.transposed_half_solve(factor, right)
    inverse, b = np.linalg.inv(array(matrix)), array(right)
    assert_close(half.mT @ half, b.swapaxes(-1, -2) @ inverse @ b)
    assert_close(factor @ half, b)
    assert_close(factor.mT @ other_half, b)
    assert_close(linalg.transposed_half_solve(factor, half), inverse @ b)
    assert_close(linalg.logdet(factor), np.linalg.slogdet(array(matrix))[1])


@pytest.mark.parametrize(
    "shapes", [((), (3,)), ((2,), (5, 2)), ((2, 1), (2, 3)), ((2, 1), (1, 3)), ((1, 2, 1), (4, 2, 3)), ((2,), ())]
)
@pytest.mark.parametrize("columns", [1, 9])
def test_a_shared_factor_serves_all_that_share_it(shapes: tuple[tuple[int, ...], tuple[int, ...]], columns: int) -> None:
    rng = np.random.default_rng(0)
    factor = linalg.cholesky(positive_definite(rng, 3, shapes[0]))
    right = normal(rng, *shapes[1], 3, columns)
    expected = np.linalg.inv(array(factor)) @ array(right)
    assert_close(linalg.half_solve(factor, right), expected)
    assert_close(linalg.transposed_half_solve(factor, right), np.linalg.inv(array(factor).swapaxes(-1, -2)) @ array(right))


def test_symmetric_part() -> None:
    matrix = normal(np.random.default_rng(1), 2, 4, 4)
    part = linalg.symmetric(matrix)
    assert torch.equal(part, part.mT)
    assert_close(part - matrix, (matrix.mT - matrix) / 2)
    assert torch.equal(linalg.symmetric(part), part)


# --- repairs --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("depth", [3e-8, 3e-7, 3e-6, 3e-5, 3e-4, 3e-3])
def test_repair_adds_the_smallest_sufficient_multiple_of_the_diagonal(depth: float) -> None:
    matrix = slightly_indefinite(np.random.default_rng(2), depth)
    matrix = matrix * torch.tensor([1.0, 2.0, 3.0, 4.0, 5.0]).outer(torch.tensor([1.0, 2.0, 3.0, 4.0, 5.0]))
    factor, jitter = quiet_cholesky(matrix)
    assert jitter == pytest.approx(10.0 ** math.ceil(math.log10(depth)))
    assert_close(factor @ factor.mT, matrix + jitter * torch.diag(matrix.diagonal()))


def test_only_the_failed_batch_element_changes() -> None:
    rng = np.random.default_rng(3)
    matrix = positive_definite(rng, D, (2, 3))
    matrix[1, 0] = slightly_indefinite(rng, 1e-5)
    sound = torch.ones(2, 3, dtype=torch.bool)
    sound[1, 0] = False
    factor, jitter = quiet_cholesky(matrix)
    assert torch.equal(factor[sound], torch.linalg.cholesky(matrix[sound]))
    assert_close(factor[1, 0] @ factor[1, 0].mT, matrix[1, 0] + jitter * torch.diag(matrix[1, 0].diagonal()))


def test_each_failed_batch_element_gets_what_it_needs_by_itself() -> None:
    rng = np.random.default_rng(4)
    depths = [1e-9, 3e-3, 1e-6]
    matrices = [slightly_indefinite(rng, depth) for depth in depths]
    together, largest = quiet_cholesky(torch.stack(matrices))
    alone = [quiet_cholesky(matrix) for matrix in matrices]
    assert torch.equal(together, torch.stack([factor for factor, _ in alone]))
    assert largest == max(jitter for _, jitter in alone)


@fast
@given(seeds, st.lists(st.integers(-20, 20), min_size=D, max_size=D))
def test_repair_does_not_depend_on_units(seed: int, exponents: list[int]) -> None:
    """cholesky(S A S) = S cholesky(A), exactly for scales that are powers of two."""
    matrix = slightly_indefinite(np.random.default_rng(seed), 2e-6)
    scale = torch.tensor([2.0**e for e in exponents], dtype=torch.float64)
    factor, jitter = quiet_cholesky(matrix)
    scaled_factor, scaled_jitter = quiet_cholesky(scale[:, None] * matrix * scale)
    assert scaled_jitter == jitter
    assert torch.equal(scaled_factor, scale[:, None] * factor)


def test_a_name_warns_once_and_counts_every_time() -> None:
    rng = np.random.default_rng(5)
    mild, severe = slightly_indefinite(rng, 1e-6), slightly_indefinite(rng, 1e-3)
    repairs = Repairs()
    with pytest.warns(NumericalRepairWarning, match="layer 'a': precision was not positive definite") as caught:
        linalg.cholesky(mild, "layer 'a': precision", repairs)
    assert len(caught) == 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        linalg.cholesky(severe, "layer 'a': precision", repairs)
        linalg.cholesky(mild, "layer 'a': precision", repairs)
    with pytest.warns(NumericalRepairWarning, match="layer 'b'"):
        linalg.cholesky(mild, "layer 'b': precision", repairs)
    assert repairs.count == {"layer 'a': precision": 3, "layer 'b': precision": 1}
    assert repairs.largest["layer 'a': precision"] > repairs.largest["layer 'b': precision"]
    with pytest.warns(NumericalRepairWarning, match="layer 'a'"):
        linalg.cholesky(mild, "layer 'a': precision", Repairs())


def test_without_a_record_every_repair_warns() -> None:
    matrix = slightly_indefinite(np.random.default_rng(6), 1e-6)
    for _ in range(2):
        with pytest.warns(NumericalRepairWarning, match="matrix was not positive definite"):
            linalg.cholesky(matrix)


# --- products -------------------------------------------------------------------------------------------------------

# Leading dimensions of start, left and right: no batch, one of each, shared ones, and more than one dimension.
LEADING = [
    ((), (), ()),
    ((3,), (3,), (3,)),
    ((), (), (3,)),
    ((3,), (), (3,)),
    ((3,), (3,), ()),
    ((3,), (1,), (3,)),
    ((3,), (), (1,)),
    ((2, 3), (2, 3), (2, 3)),
    ((2, 3), (3,), (3,)),
]


@pytest.mark.parametrize(("start", "left", "right"), LEADING, ids=str)
def test_plus_product_is_a_sum_and_a_product(start: tuple[int, ...], left: tuple[int, ...], right: tuple[int, ...]) -> None:
    rng = np.random.default_rng(20)
    c, a, b = normal(rng, *start, 2, 4), normal(rng, *left, 2, 5), normal(rng, *right, 5, 4)
    kept = c.clone()
    assert_close(linalg.plus_product(c, a, b, -0.3), array(c) - 0.3 * array(a) @ array(b))
    assert torch.equal(c, kept)


# --- hopeless matrices ----------------------------------------------------------------------------------------------


@fast
@given(st.sampled_from([math.nan, math.inf, -math.inf]), st.integers(0, D - 1), st.integers(0, D - 1), st.booleans())
def test_non_finite_entries_raise(value: float, i: int, j: int, batched: bool) -> None:
    matrix = positive_definite(np.random.default_rng(7), D, (2,))
    matrix[1, i, j] = matrix[1, j, i] = value
    repairs = Repairs()
    with pytest.raises(NumericalError, match=r"layer 'a': precision contains NaN or infinite values"):
        linalg.cholesky(matrix if batched else matrix[1], "layer 'a': precision", repairs)
    assert repairs == Repairs()


HOPELESS = {
    "negative definite": -torch.eye(3, dtype=torch.float64),
    "zero": torch.zeros(3, 3, dtype=torch.float64),
    "zero variance with covariance": torch.tensor([[0.0, 1.0], [1.0, 1.0]], dtype=torch.float64),
    "correlation above one": torch.tensor([[1.0, 1.1], [1.1, 1.0]], dtype=torch.float64),
    "one of a batch": torch.stack([torch.eye(2, dtype=torch.float64), torch.diag(torch.tensor([1.0, -1.0]).double())]),
}


@pytest.mark.parametrize("case", HOPELESS)
def test_hopeless_matrices_raise(case: str) -> None:
    repairs = Repairs()
    with pytest.raises(NumericalError, match=r"layer 'a': noise scale is not positive definite"):
        linalg.cholesky(HOPELESS[case], "layer 'a': noise scale", repairs)
    assert repairs == Repairs()
