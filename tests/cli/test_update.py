"""`bali update`: more rows for a model, without training."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pandas as pd

from bali.tables.table_model import load_table_model
from support.houses import houses, run


def test_rows_in_two_files_are_rows_in_one(tmp_path: Path, house_models: Path) -> None:
    new = houses(60, seed=5)
    parts = {"all": new, "first": new[:25], "second": new[25:]}
    for name, part in parts.items():
        part.to_csv(tmp_path / f"{name}.csv", index=False)
    before = (house_models / "price" / "model.bali").read_bytes()
    at_once, first, second = (tmp_path / f"{name}.bali" for name in ("at-once", "first", "second"))
    result = run("update", house_models / "price", tmp_path / "all.csv", "--out", at_once, "--json")
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout)["n_rows"] == 60
    assert run("update", house_models / "price", tmp_path / "first.csv", "--out", first).exit_code == 0
    assert run("update", first, tmp_path / "second.csv", "--out", second).exit_code == 0
    assert (house_models / "price" / "model.bali").read_bytes() == before
    means = [load_table_model(path).predictive(new).mean.numpy() for path in (house_models / "price", at_once, second)]
    np.testing.assert_allclose(means[2], means[1], rtol=1e-5)
    errors = [float(np.square(mean[:, 0] - new["price"]).mean()) for mean in means]
    assert errors[1] < errors[0]
    assert load_table_model(second).record["notes"][-1] == "later: 35 rows of second.csv added without training"


def test_a_model_is_replaced_and_forgets(tmp_path: Path, house_models: Path) -> None:
    model, file = tmp_path / "model.bali", tmp_path / "new.csv"
    model.write_bytes((house_models / "price" / "model.bali").read_bytes())
    dearer = houses(60, seed=6)
    dearer["price"] = 3.0 * dearer["price"]
    dearer.to_csv(file, index=False)
    known = float(load_table_model(model).predictive(dearer).mean.mean())
    result = run("update", model, file, "--forget", 0.9)
    assert result.exit_code == 0, result.output
    assert "what holds now may be something else" in " ".join(result.output.split())
    faded = load_table_model(model)
    assert float(faded.predictive(dearer).mean.mean()) > 1.5 * known
    assert faded.record["notes"][-1].endswith("90% of the earlier ones faded")


def test_rows_like_the_old_ones_are_no_drift(tmp_path: Path, house_models: Path) -> None:
    file = tmp_path / "new.csv"
    rows = houses(40, seed=7)
    rows.loc[3, "price"] = np.nan
    rows.to_csv(file, index=False)
    result = run("update", house_models / "price", file, "--out", tmp_path / "m.bali")
    assert result.exit_code == 0, result.output
    words = " ".join(result.output.split())
    assert "39 rows added" in words
    assert "1 row without a value of 'price' left out" in words
    assert "something else" not in words


def test_what_cannot_be_done_is_told(tmp_path: Path, house_models: Path) -> None:
    empty, without = tmp_path / "empty.csv", tmp_path / "without.csv"
    houses(3).assign(price=np.nan).to_csv(empty, index=False)
    pd.DataFrame({"price": [1.0]}).to_csv(without, index=False)
    for model, file, words in (
        ("dear", house_models / "houses.csv", "only a regression with Gaussian noise takes in rows"),
        ("price", empty, "there is nothing to learn from"),
        ("price", without, "which the model needs"),
    ):
        result = run("update", house_models / model, file, "--out", tmp_path / "m.bali")
        assert result.exit_code != 0
        assert words in " ".join(result.output.replace("│", " ").split())
    assert not (tmp_path / "m.bali").exists()
