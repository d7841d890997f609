"""What a model says when its inputs change: as values, and as a page without a server."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from bali.tables.html_report.what_if_page import what_if_html
from bali.tables.table_model import TableModel, load_table_model
from bali.tables.what_if import day, described, inputs_of, predict_rows, sweep, typical_row
from support.houses import houses, run
from support.report_cases import MARKUP, SCRIPT


@pytest.fixture(scope="module")
def price(house_models: Path) -> TableModel:
    return load_table_model(house_models / "price")


def test_ranges_are_those_of_the_table(price: TableModel) -> None:
    table = houses()
    inputs = {each.name: each for each in inputs_of(price)}
    size = inputs["size"]
    assert size.low is not None
    assert size.high is not None
    assert table["size"].min() <= size.low < size.high <= table["size"].max()
    assert inputs["town"].categories == ("Jena", "Köln", "Ulm")
    assert inputs["town"].start in inputs["town"].categories
    assert str(inputs["sold"].start).startswith("2024-")


def test_a_typical_row_is_predicted(price: TableModel) -> None:
    row = typical_row(price)
    told = described(price, row)
    assert told["low"] < told["mean"] < told["high"]
    assert told["std"] ** 2 == pytest.approx(told["epistemic_std"] ** 2 + told["aleatoric_std"] ** 2, rel=1e-6)
    assert told["notes"] == []


def test_a_sweep_is_the_same_as_its_rows(price: TableModel) -> None:
    row = typical_row(price)
    column = next(each for each in inputs_of(price) if each.name == "town")
    found = sweep(price, row, column)
    each = [float(predict_rows(price, [row | {"town": town}])[0].mean[0, 0]) for town in found.at]
    np.testing.assert_allclose(found.mean, each, rtol=1e-5)


def test_models_of_earlier_versions_have_no_ranges(price: TableModel) -> None:
    for kept in (
        {},
        {"inputs": 3},
        {"inputs": {"size": {"low": "a", "high": 2}}},
        {"inputs": {"size": {"low": 2.0, "high": 1.0}}},
    ):
        older = replace(price, record={name: v for name, v in price.record.items() if name != "inputs"} | kept)
        size = next(each for each in inputs_of(older) if each.name == "size")
        assert (size.low, size.high) == (None, None)
        assert len(sweep(older, typical_row(older), size).at) == 1
        assert "Predicting" in what_if_html(older, typical_row(older))


def test_days() -> None:
    assert day(0.0) == "1970-01-01"
    assert day(19844.5) == "2024-05-01"
    assert day(-1e9) == "0001-01-01"
    assert day(1e9) == "9999-12-31"


def test_the_page_is_one_file(house_models: Path, tmp_path: Path) -> None:
    out = tmp_path / "page.html"
    done = run("report", house_models / "dear", "--what-if", "--out", out)
    assert done.exit_code == 0
    page = out.read_text(encoding="utf-8")
    assert page.count("<figure") == 5
    assert "<script" not in page
    assert "http" not in page.replace("http-equiv", "").replace("http://www.w3.org", "")


def test_the_page_is_about_the_row_that_was_named(house_models: Path, tmp_path: Path) -> None:
    houses(2, seed=5).assign(size=77.25).to_csv(tmp_path / "rows.csv", index=False)
    out = tmp_path / "page.html"
    done = run("report", house_models / "price", "--what-if", "--around", tmp_path / "rows.csv", "--out", out)
    assert done.exit_code == 0
    assert "77.25" in out.read_text(encoding="utf-8")
    refused = run("report", house_models / "price", "--around", tmp_path / "rows.csv", "--out", out)
    assert refused.exit_code == 1
    assert "--what-if" in refused.output
    (tmp_path / "empty.csv").write_text((tmp_path / "rows.csv").read_text().splitlines()[0] + "\n")
    empty = run("report", house_models / "price", "--what-if", "--around", tmp_path / "empty.csv", "--out", out)
    assert empty.exit_code == 1
    assert "no rows" in empty.output


def test_names_cannot_be_markup(price: TableModel) -> None:
    hostile = replace(price, target=replace(price.target, name=f"{SCRIPT}{MARKUP}"))
    page = what_if_html(hostile, typical_row(hostile) | {"town": SCRIPT})
    assert SCRIPT not in page
    assert "{{ 7 * 7 }}" in page.replace("&#34;", '"')


def test_open_shows_the_page(house_models: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[str] = []
    monkeypatch.setattr("typer.launch", opened.append)
    out = tmp_path / "page.html"
    assert run("report", house_models / "price", "--out", out, "--open").exit_code == 0
    assert opened == [out.as_uri()]
