"""Symmetric matrices as messages: the strips right of the diagonal hold little more than half of the numbers."""

from __future__ import annotations

from collections.abc import Iterator

from torch import Tensor

#: More strips leave out little more, and every one is a copy.
_STRIPS, _LEAST_WIDTH = 8, 8


def _bounds(d: int) -> list[tuple[int, int]]:
    width = max(-(-d // _STRIPS), _LEAST_WIDTH)
    return [(low, min(low + width, d)) for low in range(0, d, width)]


def strips(matrix: Tensor) -> list[Tensor]:
    """Rows low..high of symmetric matrices (..., D, D), from column low on."""
    return [matrix[..., low:high, low:] for low, high in _bounds(matrix.shape[-1])]


def whole(like: Tensor, parts: Iterator[Tensor]) -> Tensor:
    """The matrices, of the shape of `like`, whose strips come next."""
    out = like.new_empty(like.shape)
    for low, high in _bounds(like.shape[-1]):
        part = next(parts)
        out[..., low:high, low:] = part
        out[..., high:, low:high] = part[..., high - low :].mT
    return out
