"""Frames in `fit` and `predict`: what becomes of missing values, categories and text, and what is refused."""

from __future__ import annotations

import functools
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pytest

import bali
from bali import BALIClassifier, BALIRegressor
from bali.estimators.frame_columns import MAX_CATEGORIES, learn_columns, named_cells, split_texts
from bali.files import ModelFileError, read, write

N = 60
QUICK: dict[str, Any] = {
    "max_iter": 20, "n_members": 2, "n_samples": 8, "hidden_layer_sizes": (4,), "n_bins": 0, "random_state": 0, "n_jobs": 1,
}  # fmt: skip


def frame() -> pd.DataFrame:
    rng = np.random.default_rng(0)
    made = pd.DataFrame(
        {
            "size": np.where(rng.random(N) < 0.2, np.nan, rng.normal(size=N)),
            "town": pd.Categorical(rng.choice(["Ulm", "Jena"], N)),
            "state": rng.choice(["new", "old"], N),
            "garden": rng.random(N) < 0.5,
            "rooms": pd.array(rng.integers(1, 6, N), dtype="Int64"),
        }
    )
    made.loc[3, "rooms"] = pd.NA
    made.loc[4, "state"] = None
    return made


def price() -> Any:
    return frame()["size"].fillna(0.0).to_numpy() + (frame()["town"] == "Ulm").to_numpy()


@functools.cache
def fitted() -> BALIRegressor:
    return BALIRegressor(**QUICK).fit(frame(), price())


def features(made: pd.DataFrame) -> pd.DataFrame:
    numbers, texts = split_texts(made, None)
    cells = named_cells(numbers.to_numpy(dtype=float), texts, list(made))
    columns = learn_columns(cells)
    return pd.DataFrame(columns.features(cells), columns=columns.feature_names)


def test_every_kind_of_column_becomes_numbers() -> None:
    made = frame()
    found = features(made)
    assert list(found) == [
        "size", "garden", "rooms", "size is missing", "rooms is missing", "town = Jena", "town = Ulm",
        "state = (missing)", "state = new", "state = old",
    ]  # fmt: skip
    missing = made["size"].isna()
    np.testing.assert_array_equal(found["size is missing"], missing)
    np.testing.assert_array_equal(found["size"], made["size"].fillna(made["size"].median()))
    np.testing.assert_array_equal(found["town = Ulm"], made["town"] == "Ulm")
    np.testing.assert_array_equal(found["garden"], made["garden"])
    assert found["state = (missing)"].to_numpy().nonzero()[0].tolist() == [4]
    assert found["rooms is missing"].to_numpy().nonzero()[0].tolist() == [3]


def test_rare_categories_are_zero_in_all_columns() -> None:
    common = np.repeat([f"c{i:03d}" for i in range(MAX_CATEGORIES)], 3)
    found = features(pd.DataFrame({"c": [*common, "rare", "rarer"]}))
    assert found.shape[1] == MAX_CATEGORIES
    assert found.to_numpy()[-2:].sum() == 0.0


def test_fit_and_predict_of_a_frame() -> None:
    model, made = fitted(), frame()
    assert model.n_features_in_ == 5
    assert list(model.feature_names_in_) == list(made)
    chosen = model.health().chosen
    assert "'size', 'rooms'" in chosen["missing values"]
    assert "'town', 'state'" in chosen["categories"]
    before = model.predict(made)
    unseen = made.assign(town=made["town"].astype(object)).copy()
    unseen.loc[0, "town"] = "Bonn"
    after = model.predict(unseen)
    assert after[0] != before[0]
    np.testing.assert_array_equal(after[1:], before[1:])
    gap = made.assign(garden=made["garden"].astype(object))
    gap.loc[0, "garden"] = None  # never missing in training: the median
    assert np.isfinite(model.predict(gap)).all()
    np.testing.assert_allclose(model.predict(pl.from_pandas(made)), before)


def test_columns_are_in_the_file_and_in_pickles(tmp_path: Path) -> None:
    model, made = fitted(), frame()
    model.save(tmp_path / "model.bali")
    np.testing.assert_array_equal(bali.load(tmp_path / "model.bali").predict(made), model.predict(made))
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(model)).predict(made), model.predict(made))
    meta, tensors = read(tmp_path / "model.bali", "estimator")
    meta["state"]["columns"][0]["has_missing"] = False
    write(tmp_path / "other.bali", "estimator", meta, tensors)
    with pytest.raises(ModelFileError, match="other inputs"):
        bali.load(tmp_path / "other.bali")


def test_missing_values_in_arrays() -> None:
    X = frame()[["size"]].to_numpy()
    model = BALIClassifier(**QUICK).fit(X, price() > 0.5)
    assert model.columns_.feature_names == ["x0", "x0 is missing"]
    assert np.isfinite(model.predict_proba(np.array([[np.nan], [0.3]]))).all()


REFUSED: dict[str, tuple[Any, type[Exception], str]] = {
    "lists": ([[1, 2]] * N, TypeError, "'town' holds a list.*leave it out"),
    "mixed": ([1, "a"] * (N // 2), ValueError, "'town' mixes text, such as 'a', with numbers, such as 1;.*astype"),
    "dates": (pd.Timestamp("2024-01-01"), ValueError, "'town' holds dates; turn it into numbers"),
    "names": ([f"n{i}" for i in range(N)], ValueError, "'town' has a different text in nearly every row"),
    "infinity": ([np.inf, *[1.0] * (N - 1)], ValueError, "infinity"),
}


@pytest.mark.parametrize(("values", "error", "message"), REFUSED.values(), ids=REFUSED.keys())
def test_columns_that_cannot_be_used_are_named(values: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        BALIRegressor(**QUICK).fit(frame().assign(town=values), price())


def test_new_frames_have_the_columns_of_the_first() -> None:
    with pytest.raises(ValueError, match="'size' held numbers when the model was fitted and holds text here"):
        fitted().predict(frame().assign(size="big"))
    with pytest.raises(ValueError, match="feature names"):
        fitted().predict(frame().drop(columns="size"))
