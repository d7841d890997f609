"""All splits (or seeds) of a data set as stacked members, to be trained together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.preprocessing import StandardScaler
from torch import Tensor

from bali_benchmarks.datasets import Dataset, Split
from bali_benchmarks.reproduce.paper_settings import PaperSetting


@dataclass(frozen=True)
class Pool:
    """Rows of K members: member k trains on x[rows[k]] and is tested on x_test[k]. Inputs and regression targets are at
    the unit scale of the member's training rows; targets are y · scale + mean in their own units."""

    x: Tensor  # (N, D)
    y: Tensor  # (N, 1), or classes (N,)
    rows: Tensor  # (K, n)
    x_test: list[Tensor]  # (m, D) each
    y_test: list[Tensor]  # (m,) each, in their own units
    n_classes: int  # 0 for regression
    mean: tuple[float, ...] = ()
    scale: tuple[float, ...] = ()
    #: Members have the same rows and see them in the same mini-batches: what they have in common is computed once.
    shares_rows: bool = False

    @property
    def members(self) -> int:
        return len(self.rows)

    @property
    def n_data(self) -> int:
        return self.rows.shape[1]

    def batch(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Inputs (K, B, D) and targets of row numbers (K, B); of those that all members share (1, B), inputs (B, D)."""
        if self.shares_rows:
            return self.x[rows[0]], self.y[rows[0]].expand(self.members, -1)
        return self.x[rows], self.y[rows]


def split_of(data: Dataset, setting: PaperSetting, k: int, *, published: bool) -> Split:
    """Split number k, or its first rows where the setting says so."""
    split, most = data.split(k, published=published), setting.max_rows
    return Split(split.X_train[:most], split.y_train[:most], split.X_test[:most], split.y_test[:most])


def splits_of(data: Dataset, setting: PaperSetting, *, published: bool) -> list[Split]:
    return [split_of(data, setting, k, published=published) for k in range(setting.n_splits)]


def table_pool(splits: Sequence[Split], n_classes: int) -> Pool:
    """A pool that holds every split's training rows, standardised by themselves."""
    inputs = [_standardised(s.X_train, s.X_test) for s in splits]
    n, members = len(splits[0].y_train), len(splits)
    rows = torch.arange(members * n).reshape(members, n)
    x, x_test = torch.cat([train for train, _ in inputs]), [test for _, test in inputs]
    observed = np.concatenate([s.y_train for s in splits])
    y_test = [torch.as_tensor(s.y_test) for s in splits]
    if n_classes:
        return Pool(x, torch.as_tensor(observed), rows, x_test, y_test, n_classes)
    mean = [float(s.y_train.mean()) for s in splits]
    scale = [float(s.y_train.std()) or 1.0 for s in splits]
    y = (observed - np.repeat(mean, n)) / np.repeat(scale, n)
    return Pool(x, _float32(y)[:, None], rows, x_test, y_test, 0, tuple(mean), tuple(scale))


def image_pool(split: Split, n_seeds: int, n_classes: int) -> Pool:
    """A given split for all seeds, which differ in initial weights and draws, not in the order of mini-batches; all pixels
    share one mean and one scale."""
    x, x_test = (standard_pixels(pixels, split) for pixels in (split.X_train, split.X_test))
    y, y_test = torch.as_tensor(split.y_train), torch.as_tensor(split.y_test)
    rows = torch.arange(len(y)).expand(n_seeds, -1)
    return Pool(x, y, rows, [x_test] * n_seeds, [y_test] * n_seeds, n_classes, shares_rows=True)


def standard_pixels(pixels: NDArray[Any], split: Split) -> Tensor:
    """At the unit scale of all training pixels together, as a network that was trained on the split expects them."""
    seen = _float32(split.X_train)
    return (_float32(pixels) - seen.mean()) / seen.std()


def _standardised(train: NDArray[Any], test: NDArray[Any]) -> tuple[Tensor, Tensor]:
    scaler = StandardScaler().fit(train)
    return _float32(scaler.transform(train)), _float32(scaler.transform(test))


def _float32(values: NDArray[Any]) -> Tensor:
    return torch.as_tensor(values, dtype=torch.float32)
