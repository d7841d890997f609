"""Several batches as one: statistics are sums over rows, so that they give the posterior of one large batch."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from torch import Tensor

from bali.inference.passes import BatchStatistics
from bali.inference.statistics import LayerStatistics


def known(sums: Mapping[str, LayerStatistics]) -> dict[str, Callable[[], LayerStatistics]]:
    """Statistics that are sums already, as `BatchStatistics` wants them."""
    return {name: lambda own=own: own for name, own in sums.items()}  # type: ignore[misc]


def summed(batch: BatchStatistics) -> BatchStatistics:
    """The same with sums over its rows, which can then be freed."""
    return replace(batch, layers=known({name: batch.take(name) for name in list(batch.layers)}))


def together(earlier: BatchStatistics, last: BatchStatistics) -> BatchStatistics:
    """Both batches, seen at the same weights one after the other. The rows of the last one may still be kept."""

    def both(name: str) -> Callable[[], LayerStatistics]:
        return lambda: earlier.take(name) + last.take(name)

    of_others = [_sum(a, b) for a, b in zip(earlier.of_others, last.of_others, strict=True)]
    layers, totals = {name: both(name) for name in last.layers}, earlier.totals + last.totals
    return replace(last, state=earlier.state, totals=totals, of_others=of_others, layers=layers)


def _sum(first: Tensor | None, second: Tensor | None) -> Tensor | None:
    return second if first is None else first if second is None else first + second
