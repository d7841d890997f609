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
from bali.estimators.recipe import make_recipe
from bali.training.stack_course import CourseRules
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
            # Networks are in float32, and NumPy's sines (of waves) differ by a last digit from one version to the next.
            np.testing.assert_allclose(found[name], values, rtol=1e-5, atol=1e-9, err_msg=name)


@EACH
def test_predictions_are_those_that_were_recorded(path: Path, expected: dict[str, list[Any]]) -> None:
    assert_as_recorded(path, expected)


@EACH
def test_other_rules_change_nothing(path: Path, expected: dict[str, list[Any]], monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever a rule says today, a model is what it was."""
    parameters = bali.BALIClassifier().get_params()
    size: dict[str, Any] = {
        "n_rows": 30.0,
        "n_distinct": 30,
        "n_columns": 3,
        "n_outputs": 2,
        "likelihoods": ("categorical",),
    }
    before = make_recipe(parameters, **size, seed=0).to_json()
    rules = {
        "hidden_layer_sizes": (7,), "bins": (0, 5), "groups": 2, "held_out_share": 0.3, "members": 4,
        "course": CourseRules(n_steps=5, batch_size=3),
    }  # fmt: skip
    for name, value in rules.items():
        monkeypatch.setattr(defaults, name, lambda *_args, _value=value, **_named: _value)
    after = make_recipe(parameters, **size, seed=0).to_json()
    changed = {name for name in before if after[name] != before[name]}
    assert changed == {"hidden", "bins", "n_groups", "held_out_share", "n_members", "course"}
    assert_as_recorded(path, expected)


def test_a_model_goes_on_from_its_file(tmp_path: Path) -> None:
    """Training further is nearly the same whether or not the model was in a file in between: only momentum is lost."""
    X = np.random.default_rng(0).normal(size=(30, 3))
    path = FIXTURES / "0.2" / "stream.bali"
    one, other = bali.load(path), bali.load(path)
    one.partial_fit(X, X[:, 0])
    one.save(tmp_path / "m")
    one = bali.load(tmp_path / "m")
    other.partial_fit(X, X[:, 0])
    np.testing.assert_array_equal(one.predict(X), other.predict(X))
    for _ in range(60):
        one.partial_fit(X, X[:, 1])
        other.partial_fit(X, X[:, 1])
    assert np.corrcoef(one.predict(X), other.predict(X))[0, 1] > 0.95
    assert np.corrcoef(one.predict(X), X[:, 1])[0, 1] > 0.9
    assert one.recipe_ == other.recipe_
    assert (one.n_iter_, one.n_seen_) == (other.n_iter_, other.n_seen_)


def test_a_pickle_goes_by_the_recipe_too(monkeypatch: pytest.MonkeyPatch) -> None:
    model = bali.load(FIXTURES / "0.2" / "classifier.bali")
    X = np.random.default_rng(0).normal(size=(9, 3))
    expected, pickled = model.predict(X), pickle.dumps(model)
    for rule in ("hidden_layer_sizes", "bins", "groups", "held_out_share", "members", "course"):
        monkeypatch.delattr(defaults, rule)
    again = pickle.loads(pickled)
    np.testing.assert_array_equal(again.predict(X), expected)
    assert again.recipe_ == model.recipe_
