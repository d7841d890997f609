"""`bali predict`, `evaluate` and `report` with models of a table with every kind of column."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import bali
from bali.tables.table_model import load_table_model
from support.houses import houses, run

# --- predict ----------------------------------------------------------------------------------------------------


def test_predictions_of_numbers(tmp_path: Path, house_models: Path) -> None:
    out = tmp_path / "p.csv"
    result = run("predict", house_models / "price", house_models / "houses.csv", "--out", out)
    assert result.exit_code == 0
    frame = pd.read_csv(out)
    assert list(frame) == ["row", "mean", "std", "lower", "upper", "epistemic_std", "aleatoric_std"]
    assert frame["row"].tolist() == list(range(1, 81))
    np.testing.assert_allclose(frame["std"] ** 2, frame["epistemic_std"] ** 2 + frame["aleatoric_std"] ** 2, rtol=1e-6)
    assert ((frame["lower"] < frame["mean"]) & (frame["mean"] < frame["upper"])).all()
    assert np.corrcoef(frame["mean"], houses().price)[0, 1] > 0.9


def test_predictions_are_those_of_the_estimator(tmp_path: Path, house_models: Path) -> None:
    path, out = house_models / "price" / "model.bali", tmp_path / "p.parquet"
    run("predict", path, house_models / "houses.csv", "--out", out, "--coverage", 0.5)
    frame = pd.read_parquet(out)
    model = load_table_model(house_models / "price")
    features = model.encoder.transform(houses())
    estimator = bali.load(house_models / "price" / "model.bali")
    assert isinstance(estimator, bali.BALIRegressor)
    mean, std = estimator.predict(features, return_std=True)
    low, high = estimator.predict_interval(features, coverage=0.5)
    for name, expected in {"mean": mean, "std": std, "lower": low, "upper": high}.items():
        np.testing.assert_allclose(frame[name], expected, rtol=1e-9)


def test_predictions_of_classes_to_standard_output(house_models: Path) -> None:
    result = run(
        "predict", house_models / "dear", house_models / "houses.csv", "--out", "-", "--id", "house", "--samples", 16
    )
    lines = result.stdout.splitlines()
    assert lines[0] == "house,class,probability_no,probability_yes,entropy,epistemic,aleatoric"
    assert len(lines) == 81
    house, label, no, yes, entropy, epistemic, aleatoric = lines[1].split(",")
    assert (house, label in ('"yes"', '"no"')) == ('"H00000"', True)
    assert float(no) + float(yes) == pytest.approx(1)
    assert float(entropy) == pytest.approx(float(epistemic) + float(aleatoric), abs=1e-9)
    assert "does not use are ignored: 'price'" in result.stderr


def test_new_categories_and_missing_cells_are_noted(tmp_path: Path, house_models: Path) -> None:
    new = houses().assign(town="Bonn", rooms=np.nan)
    new.to_csv(tmp_path / "new.csv", index=False)
    result = run("predict", house_models / "price", tmp_path / "new.csv", "--out", tmp_path / "p.csv", "--json")
    notes = json.loads(result.stdout)["notes"]
    assert notes[0].startswith("'rooms': empty in 80 rows, but never in training")
    assert notes[1].startswith("'town': 80 rows with a category the model does not know ('Bonn')")
    assert notes[1] in result.stderr


def test_parquet_and_csv_give_the_same(tmp_path: Path, house_models: Path) -> None:
    frame = houses()
    frame.assign(sold=pd.to_datetime(frame.sold), town=frame.town.astype("category")).to_parquet(tmp_path / "h.parquet")
    for file, out in ((tmp_path / "h.parquet", "a.csv"), (house_models / "houses.csv", "b.csv")):
        assert run("predict", house_models / "price", file, "--out", tmp_path / out).exit_code == 0
    assert (tmp_path / "a.csv").read_bytes() == (tmp_path / "b.csv").read_bytes()


# --- evaluate and report ----------------------------------------------------------------------------------------


def test_evaluate(tmp_path: Path, house_models: Path) -> None:
    new = houses(60, seed=1)
    new.loc[3, "dear"] = None
    new.to_csv(tmp_path / "new.csv", index=False)
    result = run("evaluate", house_models / "dear", tmp_path / "new.csv", "--json")
    content = json.loads(result.stdout)
    assert content["n_rows"] == 59
    assert set(content["metrics"]) == {"accuracy", "log_likelihood", "ece", "auc", "brier"}
    assert content["metrics"]["accuracy"] > 0.8
    assert "1 row without a value of 'dear' left out" in content["notes"]
    text = run("evaluate", house_models / "price", tmp_path / "new.csv").stdout
    assert text.startswith("scores of 60 rows of new.csv:")


def test_report_is_made_again_from_the_model(tmp_path: Path, house_models: Path) -> None:
    result = run("report", house_models / "price", "--out", tmp_path / "r.html")
    assert result.exit_code == 0
    assert (tmp_path / "r.html").read_text() == (house_models / "price" / "report.html").read_text()
    inside = run("report", house_models / "dear" / "model.bali", "--json")
    assert json.loads(inside.stdout) == {"report": str(house_models / "dear" / "report.html")}
