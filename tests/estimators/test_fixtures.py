"""Models that earlier versions wrote are read, and predict what they predicted."""

from __future__ import annotations

import json
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import bali
from bali.estimators import defaults
from bali.estimators.recipe import TableSize, make_recipe
from bali.training.plan import Plan
from support.write_fixtures import FIXTURES, predictions

RECORDED = {
    f"{folder.name}/{name}": (folder / name, expected)
    for folder in sorted(FIXTURES.iterdir())
    for name, expected in json.loads((folder / "predictions.json").read_text(encoding="utf-8")).items()
}
EACH = pytest.mark.parametrize(("path", "expected"), RECORDED.values(), ids=RECORDED.keys())


def assert_as_recorded(path: Path, expected: dict[str, list[Any]]) -> None:
    found = predictions(path)
    assert found.keys() == expected.keys()
    for name, values in expected.items():
        if isinstance(values[0], str):
            assert found[name] == values
        else:
            np.testing.assert_allclose(found[name], values, rtol=1e-6, atol=1e-9, err_msg=name)


@EACH
def test_predictions_are_those_that_were_recorded(path: Path, expected: dict[str, list[Any]]) -> None:
    assert_as_recorded(path, expected)


@EACH
def test_other_rules_change_nothing(path: Path, expected: dict[str, list[Any]], monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever a rule says today, a model is what it was."""
    size = TableSize(n_rows=30.0, n_distinct=30, n_columns=3, n_outputs=2, classes=True)
    parameters = bali.BALIClassifier().get_params()
    before = make_recipe(parameters, size, seed=0).to_json()
    rules = {
        "hidden_layer_sizes": (7,), "candidates": (defaults.Candidate(2.0),), "first_variance": 0.3, "prior_widening": 5.0,
        "initial_variance": 4.0, "effective_size": 11.0, "members": 4, "like_images": True, "shares_held_out_rows": True,
        "plan": Plan(5),
    }  # fmt: skip
    for name, value in rules.items():
        monkeypatch.setattr(defaults, name, lambda *_args, _value=value, **_named: _value)
    monkeypatch.setattr(defaults, "STREAM_RATE", 0.05)
    after = make_recipe(parameters, size, seed=0).to_json()
    changed = {name for name in before if after[name] != before[name]}
    assert changed == {
        "layer_sizes", "n_members", "prior_variances", "initial_variances", "linear", "unit_variances", "prior_widening",
        "stream_rate", "effective_size", "shares_held_out_rows", "plan",
    }  # fmt: skip
    assert_as_recorded(path, expected)


def test_a_model_goes_on_from_its_file(tmp_path: Path) -> None:
    """Training further is the same whether or not the model was in a file in between."""
    X = np.random.default_rng(0).normal(size=(30, 3))
    path = FIXTURES / "0.2" / "stream.bali"
    one, other = bali.load(path), bali.load(path)
    one.partial_fit(X, X[:, 0])
    one.save(tmp_path / "m")
    one = bali.load(tmp_path / "m").partial_fit(X, X[:, 1])
    other.partial_fit(X, X[:, 0]).partial_fit(X, X[:, 1])
    np.testing.assert_array_equal(one.predict(X), other.predict(X))
    assert one.recipe_ == other.recipe_


def test_a_pickle_goes_by_the_recipe_too(monkeypatch: pytest.MonkeyPatch) -> None:
    model = bali.load(FIXTURES / "0.2" / "classifier.bali")
    X = np.random.default_rng(0).normal(size=(9, 3))
    expected, pickled = model.predict(X), pickle.dumps(model)
    for rule in ("effective_size", "first_variance", "prior_widening", "initial_variance", "like_images"):
        monkeypatch.delattr(defaults, rule)
    again = pickle.loads(pickled)
    np.testing.assert_array_equal(again.predict(X), expected)
    assert again.recipe_ == model.recipe_
