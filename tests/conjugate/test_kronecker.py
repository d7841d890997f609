"""Precisions A ⊗ S of a weight matrix against the dense Kronecker product."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from bali.conjugate.matrix_normal import CurvaturePosterior, Kronecker, MatrixNormal, SumNormal
from bali.conjugate.symmetric import Dense, Diagonal, Symmetric
from support.networks import randn
from support.tolerances import EXACT


def positive(d: int, seed: int) -> Tensor:
    rows = randn(d + 3, d, seed=seed)
    return rows.mT @ rows


def inputs(kind: str, seed: int) -> Symmetric:
    return Dense(positive(4, seed)) if kind == "dense" else Diagonal(positive(4, seed).diagonal())


def dense(k: Kronecker) -> Tensor:
    return torch.kron(k.inputs.dense(), k.outputs)


@pytest.mark.parametrize("kind", ["dense", "diagonal"])
def test_products_are_those_of_the_dense_matrix(kind: str) -> None:
    k, w = Kronecker(inputs(kind, 1), positive(3, 2)), randn(4, 3, seed=3)
    flat = w.reshape(-1)
    torch.testing.assert_close(k.times(w).reshape(-1), dense(k) @ flat, rtol=EXACT, atol=EXACT)
    assert k.half_square(w) == pytest.approx(float(flat @ dense(k) @ flat) / 2, rel=EXACT)


@pytest.mark.parametrize("kind", ["dense", "diagonal"])
def test_a_sum_has_the_partial_traces_of_the_sum(kind: str) -> None:
    a, b = Kronecker(inputs(kind, 1), positive(3, 2)), Kronecker(inputs(kind, 3), 5.0 * positive(3, 4))
    wanted, found = ((dense(a) + dense(b)).reshape(4, 3, 4, 3), dense(a.plus(b)).reshape(4, 3, 4, 3))
    for pattern in ("ijkj->ik", "ijil->jl"):
        torch.testing.assert_close(torch.einsum(pattern, found), torch.einsum(pattern, wanted), rtol=EXACT, atol=EXACT)


def test_a_sum_of_terms_with_a_common_factor_is_exact() -> None:
    common = positive(3, 1)
    a, b = Kronecker(Dense(positive(4, 2)), common), Kronecker(Dense(positive(4, 3)), 2.0 * common)
    torch.testing.assert_close(dense(a.plus(b)), dense(a) + dense(b), rtol=EXACT, atol=EXACT)


@pytest.mark.parametrize("form", [MatrixNormal, SumNormal])
@pytest.mark.parametrize("kind", ["dense", "diagonal"])
def test_it_is_what_a_posterior_was_made_of(kind: str, form: type[CurvaturePosterior]) -> None:
    a, s = inputs(kind, 1), positive(3, 2)
    found = Kronecker.of(form.of(randn(4, 3, seed=5), a, s, 1.0, "layer"), "inputs")
    torch.testing.assert_close(found.inputs.dense(), a.dense(), rtol=1e-9, atol=1e-9)  # by way of eigenvectors
    torch.testing.assert_close(found.outputs, s, rtol=1e-9, atol=1e-9)
