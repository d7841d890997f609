"""Products of rows, in strips or not and with the column of ones written out or not, against sums over explicit rows."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from bali.conjugate.moments import cross, gram, input_gram, products, with_ones
from support.oracles import array, assert_close, normal
from support.tolerances import ROUNDING

# Narrow rows, rows as wide as one strip, and rows of two, three and four strips, the last one shorter than the others.
WIDTHS = [1, 5, 127, 128, 129, 256, 300, 390, 700]


def rows(width: int, n: int, batch: tuple[int, ...] = ()) -> Tensor:
    return normal(np.random.default_rng(width), *batch, n, width)


def summed(left: Tensor, right: Tensor) -> Tensor:
    return torch.from_numpy(np.einsum("...ni,...nj->...ij", array(left), array(right)))


@pytest.mark.parametrize("batch", [(), (3,)])
@pytest.mark.parametrize("width", WIDTHS)
def test_gram_is_the_sum_over_rows(width: int, batch: tuple[int, ...]) -> None:
    x = rows(width, 4, batch)
    found = gram(x)
    assert_close(found, summed(x, x), ROUNDING)
    assert_close(found, found.mT, ROUNDING)


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("batch", [(), (2,)])
@pytest.mark.parametrize("width", WIDTHS)
def test_products_with_weights_and_ones(width: int, batch: tuple[int, ...], bias: bool, weighted: bool) -> None:
    x, y = rows(width, 6, batch), rows(3, 6, batch)
    root = normal(np.random.default_rng(1), *batch, 6).abs() if weighted else None
    explicit = torch.cat([x, torch.ones(*x.shape[:-1], 1, dtype=x.dtype)], -1) if bias else x
    if root is not None:
        explicit, y = explicit * root[..., None], y * root[..., None]
    xx, xy = products(x, y, bias=bias, root=root)
    assert_close(xx, summed(explicit, explicit), ROUNDING)
    assert_close(xy, summed(explicit, y), ROUNDING)
    assert_close(input_gram(x, bias=bias, root=root), xx, ROUNDING)
    assert_close(cross(x, y, bias=bias, root=root), xy, ROUNDING)


@pytest.mark.parametrize("width", [5, 200])
def test_rows_shared_by_members_with_weights_of_their_own(width: int) -> None:
    x, y = rows(width, 6), rows(3, 6, (4,))
    root = normal(np.random.default_rng(2), 4, 6).abs()
    xx, xy = products(x, y, bias=True, root=root)
    for k in range(4):
        alone = products(x, y[k], bias=True, root=root[k])
        assert_close(xx.dense()[k], alone[0], ROUNDING)
        assert_close(xy[k], alone[1], ROUNDING)


@pytest.mark.parametrize("zeros", [0, 2])
def test_with_ones_scales_the_ones_too_and_adds_zeros(zeros: int) -> None:
    x, root = rows(2, 3), torch.tensor([0.0, 1.0, 2.0], dtype=torch.float64)
    found = with_ones(x, root, zeros)
    assert_close(found[:, :2], x * root[:, None])
    assert_close(found[:, 2], root)
    assert found.shape == (3, 3 + zeros)
    assert not bool(found[:, 3:].any())
    plain = with_ones(x, None, zeros)
    assert_close(plain[:, :3], torch.cat([x, torch.ones(3, 1, dtype=torch.float64)], -1))
    assert plain.shape == (3, 3 + zeros)
    assert not bool(plain[:, 3:].any())
