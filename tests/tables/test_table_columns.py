"""Columns of a table: what they are taken for, how they become numbers, and what is refused."""

from __future__ import annotations

import json

import numpy as np
import pandas as pd
import pytest
from sklearn.compose import ColumnTransformer
from sklearn.impute import SimpleImputer
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder

from bali.tables.cells import MISSING, Surprises, TableEncoder, as_days, as_numbers, as_text, kind_of, plan_columns
from bali.tables.errors import TableError
from bali.tables.target_column import learn_target


def numbered(values: list[object], name: str = "x") -> pd.Series:
    return pd.Series(values, name=name, index=range(1, len(values) + 1))


# --- kinds of columns -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("values", "kind"),
    [
        ([1, 2, 3], "number"),
        ([1.5, None, 2.0], "number"),
        (["1", "2.5", "-3e4"], "number"),
        ([10**30, 1, 2], "number"),
        ([True, False, True], "category"),
        ([True, None, False], "category"),
        (["red", "blue", None], "category"),
        (["2024-05-31", "2024-06-01T12:30", None], "date"),
        (list(pd.to_datetime(["2024-05-31", "2024-06-01"])), "date"),
    ],
)
def test_kinds(values: list[object], kind: str) -> None:
    assert kind_of(numbered(values)) == kind


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (["1", "2", "oops", "4"], "column 'x' holds numbers, but 'oops' in row 3 is not one.*--category x"),
        (["31/12/2023", "01/02/2024"], "dates like '31/12/2023'.*2024-05-31.*--drop x"),
        (["1,5", "2,25", "1.000,5"], "decimal commas"),
    ],
)
def test_columns_that_need_a_decision(values: list[object], message: str) -> None:
    with pytest.raises(TableError, match=message):
        plan_columns(pd.DataFrame({"x": numbered(values)}))


def test_columns_that_tell_nothing_are_named_together() -> None:
    n = 60
    names = [f"name {i}" for i in range(n)]
    frame = pd.DataFrame({"a": range(n), "e": [None] * n, "f f": [None] * n, "who": names})
    with pytest.raises(TableError, match="columns 'e', 'f f' have no values at all; leave out with --drop e --drop \"f f\""):
        plan_columns(frame)
    with pytest.raises(TableError, match=r"column 'who' has a different text in nearly every row.*--drop who"):
        plan_columns(frame[["a", "who"]])
    with pytest.raises(TableError, match="no columns are left"):
        plan_columns(frame[[]])


def test_notes_on_dates_and_row_counters() -> None:
    frame = pd.DataFrame(
        {"id": range(100, 130), "day": pd.date_range("2024-01-01", periods=30).astype(str), "x": [1.5] * 30}
    )
    plan = plan_columns(frame)
    assert plan.kinds == {"id": "number", "day": "date", "x": "number"}
    assert [note.split(":")[0] for note in plan.notes] == ["'day'", "'id'"]
    assert plan_columns(frame, ["id"]).kinds["id"] == "category"


# --- cells ------------------------------------------------------------------------------------------------------


def test_cells_as_numbers() -> None:
    np.testing.assert_array_equal(as_numbers(numbered(["1", None, " 2.5"])), [1.0, np.nan, 2.5])
    np.testing.assert_array_equal(as_numbers(pd.Series([1, None], dtype="Int64")), [1.0, np.nan])
    np.testing.assert_array_equal(as_numbers(numbered([True, False])), [1.0, 0.0])
    with pytest.raises(TableError, match="column 'x' is infinite in row 2"):
        as_numbers(numbered([1.0, -np.inf]))
    with pytest.raises(TableError, match="column 'x' is beyond 1e100 in row 1"):
        as_numbers(numbered([-1e200, 1.0]))
    with pytest.raises(TableError, match="column 'x' holds numbers, but 'unknown' in row 2 is not one"):
        as_numbers(numbered(["1", "unknown"]))


def test_cells_as_days_since_1970() -> None:
    text = numbered(["1970-01-02", None, "1970-01-01 06:00", "1970-01-01T06:00:00+06:00"])
    np.testing.assert_allclose(as_days(text), [1.0, np.nan, 0.25, 0.0])
    typed = pd.Series(pd.to_datetime(["1970-01-02", ""]))
    np.testing.assert_allclose(as_days(typed), [1.0, np.nan])
    np.testing.assert_allclose(as_days(typed.dt.tz_localize("UTC")), [1.0, np.nan])
    np.testing.assert_array_equal(as_days(numbered([np.nan, np.nan])), [np.nan, np.nan])
    for wrong in ("2024-02-30", "yesterday"):
        with pytest.raises(TableError, match=f"holds dates, but '{wrong}' in row 2"):
            as_days(numbered(["2024-01-01", wrong]))
    with pytest.raises(TableError, match="held dates when the model was trained"):
        as_days(numbered([1, 2]))


def test_categories_have_one_spelling() -> None:
    assert as_text(numbered([3, 3.0, "3", " 3.0 ", "TRUE", "true", "03"])).tolist() == [
        "3",
        "3",
        "3",
        "3",
        "True",
        "True",
        "03",
    ]
    assert as_text(numbered(["a", None])).isna().tolist() == [False, True]


# --- encoding ---------------------------------------------------------------------------------------------------


def mixed_frame(n: int = 200) -> pd.DataFrame:
    rng = np.random.default_rng(0)
    size = rng.normal(size=n)
    size[::7] = np.nan
    colour = rng.choice(["red", "green", "blue"], n).astype(object)
    colour[::11] = np.nan
    return pd.DataFrame({"size": size, "weight": rng.normal(size=n), "colour": colour, "new": rng.random(n) < 0.5})


def test_encoding_is_what_scikit_learn_learns_from_the_rows() -> None:
    frame = mixed_frame()
    encoder = TableEncoder.learn(frame, plan_columns(frame).kinds)
    one_hot = make_pipeline(
        SimpleImputer(strategy="constant", fill_value=MISSING), OneHotEncoder(handle_unknown="ignore", sparse_output=False)
    )
    reference = ColumnTransformer(
        [("n", SimpleImputer(strategy="median", add_indicator=True), ["size", "weight"]), ("c", one_hot, ["colour", "new"])]
    )
    as_objects = frame.assign(colour=frame["colour"], new=frame["new"].astype(str).astype(object))
    expected = reference.fit_transform(as_objects)
    features = encoder.transform(frame)
    np.testing.assert_array_equal(features.to_numpy(), expected)
    assert features.columns.tolist() == [
        "size", "weight", "size is missing",
        "colour = (missing)", "colour = blue", "colour = green", "colour = red", "new = False", "new = True",
    ]  # fmt: skip


def test_encoder_through_json_is_the_same() -> None:
    frame = mixed_frame()
    encoder = TableEncoder.learn(frame, plan_columns(frame).kinds)
    again = TableEncoder.from_json(json.loads(json.dumps(encoder.to_json())))
    pd.testing.assert_frame_equal(again.transform(frame), encoder.transform(frame))
    assert again.columns == encoder.columns


def test_surprises_are_encoded_and_counted() -> None:
    frame = mixed_frame()
    encoder = TableEncoder.learn(frame, plan_columns(frame).kinds)
    new = pd.DataFrame({"size": [0.0, 1.0], "weight": [np.nan, 2.0], "colour": ["mauve", "red"], "new": [True, None]})
    surprises = Surprises()
    features = encoder.transform(new, surprises)
    assert features.filter(like="colour").to_numpy().sum(1).tolist() == [0.0, 1.0]
    assert features["weight"].tolist() == [pytest.approx(frame["weight"].median()), 2.0]
    notes = surprises.notes()
    assert len(notes) == 3
    assert notes[0] == "'weight': empty in 1 row, but never in training; the training median is used"
    assert "'colour': 1 row with a category the model does not know ('mauve')" in notes[1]
    with pytest.raises(TableError, match="'colour', 'new'"):
        encoder.transform(new[["size", "weight"]])


def test_many_and_rare_categories_share_the_zeros() -> None:
    text = [f"c{i % 150}" for i in range(3000)] + ["once"]
    encoder = TableEncoder.learn(pd.DataFrame({"x": text}), {"x": "category"})
    assert len(encoder.feature_names) == 100
    assert "x = once" not in encoder.feature_names


def test_a_column_without_values_in_the_training_part() -> None:
    encoder = TableEncoder.learn(pd.DataFrame({"x": [np.nan, np.nan]}), {"x": "number"})
    np.testing.assert_array_equal(encoder.transform(pd.DataFrame({"x": [np.nan, 3.0]})).to_numpy(), [[0.0, 1.0], [3.0, 0.0]])


# --- targets ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("values", "task", "classes"),
    [
        (["b", "a"] * 20, "classification", ("a", "b")),
        ([True, False] * 20, "classification", ("False", "True")),
        ([10, 2, 1] * 20, "classification", ("1", "2", "10")),
        (list(range(30)) * 2, "regression", ()),
        ([1, 2, 3, 4], "regression", ()),
        ([0.5, 1.5] * 20, "regression", ()),
    ],
)
def test_the_task_is_inferred(values: list[object], task: str, classes: tuple[str, ...]) -> None:
    target, reason = learn_target(numbered(values, "y"))
    assert (target.task, target.classes) == (task, classes)
    assert "'y'" in reason


def test_the_task_can_be_said() -> None:
    target, _ = learn_target(numbered([1, 2, 3] * 10, "y"), "regression")
    np.testing.assert_array_equal(target.values(numbered([3, 1])), [3.0, 1.0])
    target, _ = learn_target(numbered([0.5, 1.5] * 10, "y"), "classification")
    assert target.classes == ("0.5", "1.5")
    np.testing.assert_array_equal(target.values(numbered(["1.5", 0.5])), [1, 0])


def test_labels_are_numbers_where_they_are() -> None:
    assert learn_target(numbered([10, 9] * 10, "y"))[0].labels.tolist() == [9, 10]
    assert learn_target(numbered(["10", "9", "x"] * 10, "y"), "classification")[0].labels.tolist() == ["10", "9", "x"]


@pytest.mark.parametrize(
    ("values", "task", "message"),
    [
        ([3.5] * 30, "auto", "is 3.5 in every row"),
        (["a"] * 30, "auto", "a classification needs two classes"),
        (["a", "b"] * 15, "regression", "needs numbers, but column 'y' holds 'a'"),
        (["1.5", "x", "2.5", "3"], "auto", "'x' in row 2 is not one.*--task classification"),
        (["2024-01-01", "2024-01-02"], "auto", "holds dates"),
        ([1.0, np.inf, 2.0], "auto", "infinite in row 2"),
        ([f"t{i}" for i in range(40)], "auto", "too many to be classes"),
    ],
)
def test_targets_that_cannot_be_predicted(values: list[object], task: str, message: str) -> None:
    with pytest.raises(TableError, match=message):
        learn_target(numbered(values, "y"), task)  # type: ignore[arg-type]


def test_a_class_never_seen_is_named() -> None:
    target, _ = learn_target(numbered(["a", "b"] * 10, "y"))
    with pytest.raises(TableError, match=r"class 'c' of column 'y' in row 2 is not one of the model's .'a', 'b'."):
        target.values(numbered(["a", "c"]))
