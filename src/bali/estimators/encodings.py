"""Ways to show a row to a network: its columns as they are, or also their places in bins, waves, or what near rows say.

A network has to bend a line to follow a column in steps and peaks. With a column's place in each of several quantile bins
beside it (0 below the bin, 1 above, in between linearly; Gorishniy et al. 2022), every bin has a slope of its own. A column
of few distinct values has a bin from each value to the next. Waves are sines and cosines of a column's place among its
training rows, half a period to a few over all of them: what rises and falls without edges is made of few of these.
`near_rows.py` is about near rows. Which way is better is told by held-out rows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from bali.estimators import near_rows
from bali.estimators.near_rows import NearRows
from bali.inference.schema import SchemaError

Array = NDArray[Any]
#: Widths of the outermost bin that its line goes on for.
FARTHEST_BIN = 1e6
#: Half periods of the fastest wave over the training rows, and quantiles that tell a place among these.
N_WAVES, N_PLACES = 4, 32


@dataclass(frozen=True)
class Encoding:
    """Edges of the bins of each column, a column without any being shown only as it is; and near rows, if they are shown.

    With waves, edges tell a column's place among the training rows, and waves are shown instead of bins."""

    edges: tuple[Array, ...]
    near: NearRows | None = None
    n_waves: int = 0

    @classmethod
    def learn(cls, X: Array, n_bins: int, weight: Array) -> Encoding:
        """Quantile bins with about equal weight of rows."""
        return cls(tuple(_edges(column, n_bins, weight) for column in X.T))

    @property
    def n_bins(self) -> int:
        """The most of any column."""
        return max((len(edges) - 1 for edges in self.edges if len(edges)), default=0)

    @property
    def n_inputs(self) -> int:
        """Of a network: columns, then bins, then what near rows say."""
        n_shown = 0 if self.near is None else self.near.n_shown
        of_columns = [2 * self.n_waves or len(edges) - 1 for edges in self.edges if len(edges)]
        return len(self.edges) + sum(of_columns) + n_shown

    @property
    def n_near(self) -> int:
        """Rows that near ones are looked for among."""
        return 0 if self.near is None else len(self.near.places)

    @property
    def name(self) -> str:
        if self.n_waves:
            return "with waves"
        if self.near is not None:
            return "with near rows" if self.n_bins == 0 else f"with near rows and up to {self.n_bins} bins a column"
        return "as it is" if self.n_bins == 0 else f"with up to {self.n_bins} bins a column"

    def __call__(self, X: Array, scaled: Array, targets: Array | None = None) -> Array:
        """Encoded rows: the columns at unit scale, then the places of X in the bins, −1 to 1 within the training rows, or
        waves, then what near rows say; rows whose targets (n, T) are given may be among those, and are left out there."""
        parts = [scaled]
        for column, edges in zip(X.T, self.edges, strict=True):
            if len(edges):
                place = (column[:, None] - edges[:-1]) / np.diff(edges)
                inside = place.clip(0.0, 1.0)
                if self.n_waves:
                    angle = np.pi * inside.mean(1, keepdims=True) * np.arange(1, self.n_waves + 1)
                    parts += [np.sin(angle), np.cos(angle)]
                    continue
                # Lines go on beyond the rows, so that far away networks differ and predictions are unsure.
                inside[:, 0] = place[:, 0].clip(-FARTHEST_BIN, 1.0)
                inside[:, -1] = place[:, -1].clip(0.0, FARTHEST_BIN)
                parts.append(2.0 * inside - 1.0)
        if self.near is not None:
            own = None if targets is None else torch.from_numpy(targets)
            parts.append(self.near(torch.from_numpy(scaled), own).numpy())
        return np.concatenate(parts, axis=1)

    def to_arrays(self) -> dict[str, Array]:
        counts = np.array([len(edges) for edges in self.edges], dtype=np.int64)
        near = {} if self.near is None else self.near.to_arrays()
        return {"counts": counts, "edges": np.concatenate([np.zeros(0), *self.edges])} | near

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, Array], n_waves: int = 0) -> Encoding:
        counts, edges = arrays["counts"], arrays["edges"]
        if len(edges) != counts.sum() or (counts < 0).any() or (counts == 1).any():
            raise SchemaError("its bins are not those of its columns")
        parts = tuple(np.split(edges, np.cumsum(counts)[:-1]))
        if not np.isfinite(edges).all() or any((np.diff(part) <= 0).any() for part in parts):
            raise SchemaError("the edges of its bins are not in order")
        has_near = near_rows.PARTS[0] in arrays
        return cls(parts, NearRows.from_arrays(arrays) if has_near else None, n_waves)


def _edges(column: Array, n_bins: int, weight: Array) -> Array:
    values, inverse = np.unique(column, return_inverse=True)
    if n_bins == 0 or len(values) < 3:  # two values are a line already
        return np.zeros(0)
    if len(values) > n_bins:
        share = np.cumsum(np.bincount(inverse, weights=weight)) / weight.sum()
        inner = np.searchsorted(share, np.linspace(0.0, 1.0, n_bins + 1)[1:-1])
        values = np.unique(np.concatenate([values[:1], values[inner], values[-1:]]))
    widths = np.diff(values)
    # An edge so close to the next one that their distance is rounding would give places that are not numbers.
    kept = values[np.concatenate([[True], widths > 1e-12 * max(np.ptp(values), np.finfo(float).tiny)])]
    kept[-1] = values[-1]  # the last bin ends where the rows do, also if its edge is one of these
    return kept if len(kept) > 2 else np.zeros(0)


def ways_to_try(
    X: Array, scaled: Array, weight: Array, bins: Sequence[int], near_targets: Array | None, seed: int
) -> list[Encoding]:
    """The columns with each number of bins, with waves where bins are tried, and, with targets (n, T) for it, as they are
    beside what near rows say."""
    found = distinct([Encoding.learn(X, n_bins, weight) for n_bins in bins])
    if len(found) > 1:
        found.append(replace(Encoding.learn(X, N_PLACES, weight), n_waves=N_WAVES))
    if near_targets is None:
        return found
    return [*found, replace(found[0], near=NearRows.learn(scaled, near_targets, weight, seed))]


def distinct(encodings: Sequence[Encoding]) -> list[Encoding]:
    """Without those that show the same as one before."""
    found: list[Encoding] = []
    for encoding in encodings:
        same = [known for known in found if known.n_waves == encoding.n_waves]
        if not any(all(map(np.array_equal, encoding.edges, known.edges)) for known in same):
            found.append(encoding)
    return found
