"""Other people's networks for tables: TabM of pytabkit, and bde (sklearn-contrib-bde, on JAX)."""

from __future__ import annotations

import logging
from typing import Any

import numpy as np
import torch
from sklearn.preprocessing import StandardScaler

from bali_benchmarks.tables_study.densities import Array, Fitted, classes, gaussians, held_out

#: Its own defaults, for a first look, do not learn (two members, twenty epochs, ten samples).
BDE: dict[str, Any] = {
    "hidden_layers": [16, 16],
    "n_members": 4,
    "epochs": 1000,
    "patience": 10,
    "warmup_steps": 1000,
    "n_samples": 200,
}


def _tabm(kind: Any, seed: int) -> Any:
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    return kind(device="cpu", random_state=seed, n_threads=torch.get_num_threads(), verbosity=0)


def tabm_regression(X: Array, y: Array, seed: int) -> Fitted:
    from pytabkit import TabM_D_Regressor

    X, y, X_val, y_val = held_out(X, y, seed, False)
    model = _tabm(TabM_D_Regressor, seed).fit(X, y, X_val, y_val)
    noise = float(np.square(y_val - model.predict(X_val)).mean())
    return lambda Z: gaussians(model.predict(Z), noise)


def tabm_classification(X: Array, y: Array, seed: int) -> Fitted:
    from pytabkit import TabM_D_Classifier

    X, y, X_val, y_val = held_out(X, y, seed, True)
    model = _tabm(TabM_D_Classifier, seed).fit(X, y, X_val, y_val)
    return lambda Z: classes(model.predict_proba(Z))


def bde_regression(X: Array, y: Array, seed: int) -> Fitted:
    """Targets standardised as well: it does not do that itself."""
    from bde import BdeRegressor

    scaler, centre, scale = StandardScaler().fit(X), float(y.mean()), float(y.std()) or 1.0
    model = BdeRegressor(seed=seed, **BDE)
    model.fit(scaler.transform(X).astype(np.float32), ((y - centre) / scale).astype(np.float32))

    def predict(Z: Array) -> tuple[Array, Array]:
        found = model.predict(scaler.transform(Z).astype(np.float32), mean_and_std=True)
        mean, std = (np.asarray(part, float) for part in found)
        return centre + scale * mean, np.square(scale * std)

    return lambda Z: gaussians(*predict(Z))


def bde_classification(X: Array, y: Array, seed: int) -> Fitted:
    from bde import BdeClassifier

    scaler = StandardScaler().fit(X)
    model = BdeClassifier(seed=seed, **BDE)
    model.fit(scaler.transform(X).astype(np.float32), y)
    return lambda Z: classes(np.asarray(model.predict_proba(scaler.transform(Z).astype(np.float32)), float))
