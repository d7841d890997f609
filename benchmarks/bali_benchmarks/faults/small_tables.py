"""Tables of a few rows and columns, any number of them distinct: fitted with finite predictions, or a reason why not."""

from __future__ import annotations

import warnings
from pathlib import Path

import numpy as np

from bali import BALIClassifier, BALIRegressor
from bali.inference.health import HealthWarning
from bali_benchmarks.faults.campaign import FaultError


def small_table(seed: int, folder: Path) -> str:
    """2 to 50 rows, 1 to 20 columns: 980 seeds in a row have every pair of them."""
    rng = np.random.default_rng(seed)
    n_rows, n_columns = 2 + seed % 49, 1 + seed // 49 % 20
    n_distinct = int(rng.integers(1, n_rows + 1))
    distinct = rng.permutation(np.concatenate([np.arange(n_distinct), rng.integers(0, n_distinct, n_rows - n_distinct)]))
    scale = 10.0 ** rng.choice([0, 0, 0, -200, 90], n_columns) * rng.choice([0.0, 1.0, 1.0, 1.0], n_columns)
    X = (rng.normal(size=(n_distinct, n_columns)) * scale)[distinct]
    model: BALIRegressor | BALIClassifier
    if rng.random() < 0.5:
        model, y = BALIRegressor(max_iter=3, random_state=0), rng.normal(size=n_distinct)[distinct]
    else:
        model, y = BALIClassifier(max_iter=3, random_state=0), rng.integers(0, rng.integers(1, 6), n_distinct)[distinct]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", HealthWarning)
        warnings.filterwarnings("ignore", "training stopped after")
        try:
            model.fit(X, y)
        except ValueError as error:
            if "only one class" in str(error):
                return "refused: one class"
            raise
        if isinstance(model, BALIRegressor):
            mean, std = model.predict(X, return_std=True)
            good = np.isfinite(mean).all() and np.isfinite(std).all() and (std > 0).all()
        else:
            good = np.allclose(model.predict_proba(X).sum(1), 1.0, atol=1e-4)
    if not good:
        raise FaultError(f"{n_rows} rows, {n_distinct} distinct, {n_columns} columns: predictions are not finite")
    return "fitted"
