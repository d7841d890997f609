"""Tables of shapes that the defaults were not set on: few and many rows and columns, heavy tails, outliers, rare classes.

Each is drawn from a law, so that any number of fresh rows can test what was learnt, and every draw is another table.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
#: Rows (n, D) and targets (n,) of a number of rows, and of a generator that says which law of its kind it is.
Law = Callable[[int, np.random.Generator], tuple[Array, Array]]

N_TEST = 2000


@dataclass(frozen=True)
class MadeTable:
    what: str
    n_rows: int
    n_columns: int
    classification: bool
    law: Law

    def draw(self, seed: int) -> tuple[Array, Array, Array, Array]:
        """Training rows and targets, then `N_TEST` others."""
        X, y = self.law(self.n_rows + N_TEST, np.random.default_rng(seed))
        return X[: self.n_rows], y[: self.n_rows], X[self.n_rows :], y[self.n_rows :]


def _jumps(n: int, rng: np.random.Generator) -> tuple[Array, Array]:
    X = rng.uniform(-1.0, 1.0, (n, 2))
    return X, np.where(X[:, 0] > 0.0, 2.0, -1.0) + np.sin(4.0 * X[:, 1]) + 0.2 * rng.normal(size=n)


def _sparse(n: int, rng: np.random.Generator) -> tuple[Array, Array]:
    X, weights = rng.normal(size=(n, 100)), 2.0 * rng.normal(size=5)
    return X, X[:, :5] @ weights + rng.normal(size=n)


def _nothing(n: int, rng: np.random.Generator) -> tuple[Array, Array]:
    return rng.normal(size=(n, 10)), 1000.0 + 7.0 * rng.normal(size=n)


def _outliers(n: int, rng: np.random.Generator) -> tuple[Array, Array]:
    X = rng.normal(size=(n, 5))
    y = np.sin(2.0 * X[:, 0]) + X[:, 1] * X[:, 2] + 0.1 * rng.normal(size=n)
    return X, y + 20.0 * rng.normal(size=n) * (rng.uniform(size=n) < 0.03)


def _heavy_tails(n: int, rng: np.random.Generator) -> tuple[Array, Array]:
    X = rng.standard_t(2.0, (n, 20)) * rng.lognormal(0.0, 2.0, 20)
    bent = np.tanh(X / np.median(np.abs(X), axis=0))
    return X, bent[:, :4].sum(1) + bent[:, 4] * bent[:, 5] + 0.3 * rng.standard_t(2.5, n)


def _correlated(n: int, rng: np.random.Generator) -> tuple[Array, Array]:
    hidden = rng.normal(size=(n, 3))
    X = hidden @ rng.normal(size=(3, 30)) + 0.05 * rng.normal(size=(n, 30))
    return X, np.sin(hidden[:, 0]) * hidden[:, 1] + hidden[:, 2] + 0.2 * rng.normal(size=n)


def _uneven_noise(n: int, rng: np.random.Generator) -> tuple[Array, Array]:
    X = rng.normal(size=(n, 8))
    mean = np.sin(2.0 * X[:, 0]) + np.abs(X[:, 1]) + X[:, 2] * X[:, 3]
    return X, mean + np.exp(0.5 * X[:, 4] - 1.0) * rng.normal(size=n)


def _rings(n: int, rng: np.random.Generator) -> tuple[Array, Array]:
    X = rng.normal(size=(n, 2))
    radius = np.linalg.norm(X, axis=1) + 0.15 * rng.normal(size=n)
    return X, np.digitize(radius, [0.7, 1.5])


def _rare_class(n: int, rng: np.random.Generator) -> tuple[Array, Array]:
    X = rng.normal(size=(n, 10))
    log_odds = 2.0 * X[:, 0] * X[:, 1] + X[:, 2] - 5.0
    return X, (rng.uniform(size=n) < 1.0 / (1.0 + np.exp(-log_odds))).astype(int)


def _five_classes(n: int, rng: np.random.Generator) -> tuple[Array, Array]:
    """Most columns say nothing, and classes are of very different size."""
    y = rng.choice(5, n, p=[0.6, 0.2, 0.1, 0.07, 0.03])
    X = rng.normal(size=(n, 40))
    X[:, :6] += 1.5 * rng.normal(size=(5, 6))[y]
    X[:, 6] *= 1.0 + y
    return X, y


def _separable(n: int, rng: np.random.Generator) -> tuple[Array, Array]:
    X = rng.normal(size=(n, 6))
    return X, (X @ rng.normal(size=6) > 0.3).astype(int)


MADE: dict[str, MadeTable] = {
    "jumps": MadeTable("a jump and a wave", 100, 2, False, _jumps),
    "sparse": MadeTable("5 of 100 columns count, linearly", 200, 100, False, _sparse),
    "nothing": MadeTable("targets do not depend on columns", 300, 10, False, _nothing),
    "outliers": MadeTable("3 % of the targets are far off", 500, 5, False, _outliers),
    "heavy_tails": MadeTable("columns and noise of Student-t", 1000, 20, False, _heavy_tails),
    "correlated": MadeTable("30 columns of 3 hidden variables", 3000, 30, False, _correlated),
    "uneven_noise": MadeTable("noise that depends on a column", 100_000, 8, False, _uneven_noise),
    "separable": MadeTable("two classes without overlap", 150, 6, True, _separable),
    "rings": MadeTable("three classes, ring in ring", 400, 2, True, _rings),
    "rare_class": MadeTable("one row in 30 of the second class", 3000, 10, True, _rare_class),
    "five_classes": MadeTable("5 classes of 60 to 3 %", 10_000, 40, True, _five_classes),
}
