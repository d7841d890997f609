"""A data set as arrays, and its splits into training and test rows."""

from __future__ import annotations

import operator
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

Task = Literal["regression", "classification"]
Rows = NDArray[np.integer[Any]]


@dataclass(frozen=True)
class Split:
    """Training and test rows, in the units of the data set: nothing is standardised."""

    X_train: NDArray[Any]
    y_train: NDArray[Any]
    X_test: NDArray[Any]
    y_test: NDArray[Any]


@dataclass(frozen=True)
class Dataset:
    """All rows of a set in their published order, X (n, D) and y (n,), and the splits that were published with it.

    Tables are float64; images are uint8, one row of pixels each, of `image_shape`. Targets are float64 for regression
    and the numbers of `class_names`, int64, for classification.
    """

    name: str
    task: Task
    X: NDArray[Any]
    y: NDArray[Any]
    feature_names: tuple[str, ...]
    target_name: str
    class_names: tuple[str, ...]  # empty for regression
    test_share: float  # of random splits
    n_splits: int  # as many as were published, or else as many random ones as the paper used
    train_index: Rows | None = None  # (splits, rows), where splits were published
    test_index: Rows | None = None
    image_shape: tuple[int, int] | None = None

    @property
    def has_published_splits(self) -> bool:
        return self.train_index is not None

    def split(self, k: int = 0, published: bool | None = None) -> Split:
        """Split number k: a published one where there are some, unless `published=False` asks for a random one.

        The random splits are those of `random_rows`, with k as the seed.
        """
        train, test = self.rows(k, published)
        return Split(self.X[train], self.y[train], self.X[test], self.y[test])

    def rows(self, k: int = 0, published: bool | None = None) -> tuple[Rows, Rows]:
        """The row numbers of split k: training rows, test rows."""
        k = operator.index(k)
        if published is None:
            published = self.has_published_splits
        if not published:
            if self.image_shape is not None:
                raise ValueError(f"{self.name!r} has a given training and test part and is not split at random")
            return random_rows(len(self.y), k, self.test_share)
        if self.train_index is None or self.test_index is None:
            raise ValueError(f"no splits were published for {self.name!r}: use split(k), which is random and seeded by k")
        if not 0 <= k < len(self.train_index):
            raise ValueError(f"{self.name!r} has published splits 0 to {len(self.train_index) - 1}, there is no split {k}")
        return self.train_index[k], self.test_index[k]


def random_rows(n_rows: int, seed: int, test_share: float) -> tuple[Rows, Rows]:
    """Training and test rows of a random split, the same for the same seed on every machine.

    The rule: let `order = numpy.random.default_rng(seed).permutation(n_rows)` and n_train be the integer nearest to
    (1 − test_share)·n_rows. The first n_train numbers of `order` are the training rows, the rest the test rows.
    """
    if seed < 0:
        raise ValueError(f"splits are numbered from 0, there is no split {seed}")
    order = np.random.default_rng(seed).permutation(n_rows)
    n_train = round((1.0 - test_share) * n_rows)
    return order[:n_train], order[n_train:]
