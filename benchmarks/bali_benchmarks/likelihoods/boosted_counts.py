"""Counts by boosted trees: CatBoost with its own defaults and a Poisson likelihood."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from bali.predictive.likelihoods import Poisson
from bali.predictive.mixtures import Predictive

NAME = "CatBoost, Poisson"


def is_installed() -> bool:
    """An extra: `pip install 'bali-benchmarks[peers]'`."""
    return find_spec("catboost") is not None


class BoostedCounts:
    def fit(self, X: NDArray[Any], y: Tensor) -> BoostedCounts:
        from catboost import CatBoostRegressor

        self.model = CatBoostRegressor(
            loss_function="Poisson", random_seed=0, thread_count=1, verbose=False, allow_writing_files=False
        )
        self.model.fit(X, y.numpy())
        return self

    def predict(self, X: NDArray[Any]) -> Predictive:
        log_mean = np.asarray(self.model.predict(X, prediction_type="RawFormulaVal"))
        return Poisson().predictive(torch.tensor(log_mean)[None, :, None])
