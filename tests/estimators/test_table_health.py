"""What a fitted table says about itself, and that a user's own line is blamed for warnings."""

from __future__ import annotations

import warnings
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from sklearn.datasets import load_diabetes
from sklearn.exceptions import NotFittedError

from bali import BALIRegressor, HealthWarning
from bali.estimators.table_health import TableHealth

QUICK: dict[str, Any] = {"max_iter": 60, "n_members": 2, "n_bins": 0, "hidden_layer_sizes": (10,), "random_state": 0}


@pytest.fixture(scope="module")
def health() -> TableHealth:
    X, y = load_diabetes(return_X_y=True)
    with warnings.catch_warnings():
        warnings.simplefilter("error", HealthWarning)  # nothing is off
        return BALIRegressor(**QUICK).fit(X, y).health()


def test_ordinary_data_are_sound(health: TableHealth) -> None:
    assert health.problems == []
    assert [(layer.n_inputs, layer.n_outputs) for layer in health.layers] == [(11, 10), (11, 1)]
    for layer in health.layers:
        assert 0 < layer.effective_dof <= layer.n_inputs
        assert layer.condition_number >= 1.0
    assert health.chosen["networks"] == "2 of 10-10-1"


def test_what_is_off_is_said_everywhere(health: TableHealth) -> None:
    off = replace(health, refused=3)
    with pytest.warns(HealthWarning, match="3 steps would have ruined the fit") as caught:
        off.warn(stacklevel=1)
    assert caught[0].filename == __file__
    assert off.problems[0] in str(off)
    assert "<table" in off._repr_html_()
    marked = replace(off, chosen={"columns": "<b>"})
    assert "<b>" not in marked._repr_html_()


def test_a_warning_of_fit_names_the_line_that_called_it() -> None:
    with pytest.warns(HealthWarning, match="fitted to 3 distinct rows") as caught:
        BALIRegressor(**QUICK).fit(np.eye(3), np.arange(3.0))
    assert caught[0].filename == __file__


def test_health_needs_a_fit() -> None:
    with pytest.raises(NotFittedError):
        BALIRegressor().health()
