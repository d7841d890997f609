"""What an estimator says about its own fit."""

from __future__ import annotations

import warnings
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from sklearn.datasets import load_diabetes
from sklearn.exceptions import NotFittedError

import bali
from bali.inference.health import HealthWarning

QUICK: dict[str, Any] = {"max_iter": 60, "n_members": 2, "hidden_layer_sizes": (10,), "random_state": 0}


def test_ordinary_data_does_not_warn_and_what_was_chosen_is_named() -> None:
    X, y = load_diabetes(return_X_y=True)
    with warnings.catch_warnings():
        warnings.simplefilter("error", HealthWarning)
        model = bali.BALIRegressor(**QUICK, n_bins=0).fit(X, y)
    health = model.health()
    assert health.problems == []
    assert health.is_sound
    assert [(layer.n_inputs, layer.n_outputs) for layer in health.layers] == [(11, 10), (11, 1)]
    assert all(0 < layer.effective_dof < layer.n_inputs for layer in health.layers)
    assert health.chosen["columns"] == "as it is"
    assert health.chosen["likelihood"] == "gaussian"
    assert "2 of 10-10-1" in str(health)


def test_steps_that_were_not_taken_are_told() -> None:
    X = np.random.default_rng(0).normal(size=(60, 2))
    model = bali.BALIRegressor(**QUICK).fit(X, X[:, 0])
    with pytest.warns(HealthWarning, match="3 steps would have ruined the fit"):
        replace(model.health(), refused=3).warn()


def test_health_needs_a_posterior() -> None:
    with pytest.raises(NotFittedError):
        bali.BALIRegressor().health()
