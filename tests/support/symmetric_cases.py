"""Symmetric matrices of both kinds, in batches and in either type, each beside its entries in NumPy."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pytest
import torch
from hypothesis import strategies as st
from torch import Tensor

from bali.conjugate.symmetric import Dense, Diagonal, Symmetric
from support.oracles import Array, array, assert_close, normal, positive_definite, seeds
from support.tolerances import EXACT, FLOAT32_STEPS

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
