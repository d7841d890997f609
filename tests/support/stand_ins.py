"""Small data sets in the place of real ones."""

from __future__ import annotations

import numpy as np

from bali_benchmarks import datasets


def bent_line(name: str, n_rows: int = 90) -> datasets.Dataset:
    """A bent line far from unit scale, with two published splits; constant columns must do no harm."""
    rng = np.random.default_rng(len(name))
    X = rng.normal(50.0, 9.0, (n_rows, 3))
    X[:, 2] = 4.0
    y = 1000.0 + 20.0 * np.abs(X[:, 0] - 50.0) + rng.normal(0.0, 10.0, n_rows)
    order = np.stack([rng.permutation(n_rows) for _ in range(2)])
    index = order[:, : n_rows - 30], order[:, n_rows - 30 :]
    return datasets.Dataset(name, "regression", X, y, ("a", "b", "c"), "y", (), 1 / 3, 2, *index)


def table(name: str = "spam") -> datasets.Dataset:
    """Two clouds of points, far from unit scale, a tenth of whose labels are wrong."""
    rng = np.random.default_rng(0)
    y = rng.integers(0, 2, 300)
    X = 100.0 + 10.0 * (rng.normal(size=(300, 4)) + 2.0 * y[:, None])
    labels = np.where(rng.random(300) < 0.1, 1 - y, y)
    return datasets.Dataset(name, "classification", X, labels, tuple("abcd"), "y", ("no", "yes"), 0.2, 5)


def images(name: str) -> datasets.Dataset:
    """Noise with a bright spot whose place is the class; the two sets have different spots."""
    rng = np.random.default_rng(len(name))
    y = rng.integers(0, 3, 240)
    X = rng.integers(0, 60, (240, 49)).astype(np.uint8)
    first = 0 if name == "mnist" else 24
    for column in range(4):
        X[np.arange(240), first + 4 * y + column] = 250
    train, test = np.arange(180)[None], np.arange(180, 240)[None]
    names, columns = ("a", "b", "c"), tuple(f"p{i}" for i in range(49))
    return datasets.Dataset(name, "classification", X, y, columns, "y", names, 0.25, 1, train, test, (7, 7))
