"""The runs behind the documents: they resume, and their pages say what the files say."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from bali.files import ModelFileError
from bali_benchmarks import rows_time, tables_comparison
from bali_benchmarks.commands.main import app
from bali_benchmarks.likelihoods import likelihoods_page
from bali_benchmarks.lines import append_line, read_lines, write_lines
from bali_benchmarks.made_tables import MADE, N_TEST


def test_lines_are_kept_and_stamped(tmp_path: Path) -> None:
    path = tmp_path / "new" / "results.jsonl"
    assert read_lines(path) == []
    written = append_line(path, {"a": 1})
    append_line(path, {"a": 2})
    assert [line["a"] for line in read_lines(path)] == [1, 2]
    assert read_lines(path)[0] == written
    assert {"version", "torch"} <= set(written)


def test_a_line_that_was_cut_off_is_named_and_nothing_is_changed(tmp_path: Path) -> None:
    path, page = tmp_path / "results.jsonl", tmp_path / "page.md"
    append_line(path, {"a": 1})
    cut_off = path.read_text() + '{"a": 2, "b'
    path.write_text(cut_off)
    with pytest.raises(ModelFileError, match="line 2 is not complete"):
        read_lines(path)
    result = CliRunner().invoke(app, ["defaults", "--only-page", "--out", str(path), "--page", str(page)])
    assert result.exit_code == 1
    assert "line 2 is not complete" in " ".join(result.output.split())
    assert path.read_text() == cut_off
    assert not page.exists()


def test_lines_are_replaced_as_a_whole_or_not_at_all(tmp_path: Path) -> None:
    path = tmp_path / "results.jsonl"
    write_lines(path, [{"a": 1}, {"a": 2}])
    with pytest.raises(TypeError):
        write_lines(path, [{"a": 3}, {"a": object()}])
    assert read_lines(path) == [{"a": 1}, {"a": 2}]
    assert list(tmp_path.iterdir()) == [path]


def test_tables_run_only_what_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out, page, ran = tmp_path / "t.jsonl", tmp_path / "t.md", []

    def fake(task: tables_comparison.TableTask) -> dict[str, Any]:
        ran.append(task)
        scores = {
            "log_likelihood": float(task.fold),
            "seconds": 1.0,
            "rmse": 2.0,
            "coverage_90": 0.9,
            "accuracy": 1,
            "ece": 0,
        }
        return {"set": task.name, "method": task.method, "fold": task.fold} | scores

    monkeypatch.setattr(tables_comparison, "run_task", fake)
    every = tables_comparison.tasks()
    for task in every[:7]:
        append_line(out, fake(task))
    ran.clear()
    tables_comparison.run(out, page, ["wine"])
    assert ran == [task for task in every[7:] if task.name == "wine"]
    tables_comparison.run(out, page)
    assert set(ran) == set(every[7:])
    assert len(ran) == len(every[7:])
    assert "| wine | BALI | 2.000 ± 0.707 |" in page.read_text()


def test_the_command_knows_its_tables(tmp_path: Path) -> None:
    given = ["tables", "--set", "boston", "--out", str(tmp_path / "t.jsonl"), "--page", str(tmp_path / "t.md")]
    result = CliRunner().invoke(app, given, env={"COLUMNS": "200"})
    assert result.exit_code == 2
    assert "no set 'boston'" in result.output


def test_a_fold_is_scored_by_the_method_that_was_fitted() -> None:
    row = tables_comparison.run_task(tables_comparison.TableTask("wine", "MLP", 0))
    assert row["accuracy"] > 0.9
    assert -0.3 < row["log_likelihood"] < 0
    regression = tables_comparison.run_task(tables_comparison.TableTask("diabetes", "MLP", 0))
    assert 40 < regression["rmse"] < 80
    assert 0.6 < regression["coverage_90"] < 1


def test_made_tables_are_what_they_are_said_to_be() -> None:
    for name, made in MADE.items():
        X, y, X_test, y_test = made.draw(0)
        assert X.shape == (made.n_rows, made.n_columns), name
        assert X_test.shape == (N_TEST, made.n_columns), name
        assert np.isfinite(X).all(), name
        assert np.isfinite(y).all(), name
        assert made.classification == (y.dtype.kind == "i"), name
        assert set(np.unique(y_test)) <= set(np.unique(y)) if made.classification else len(np.unique(y)) > 90, name
        assert not np.array_equal(y, made.draw(1)[1]), name
        assert all(np.array_equal(a, b) for a, b in zip((X, y, X_test, y_test), made.draw(0), strict=True)), name


def test_linear_methods_find_what_is_linear() -> None:
    regression = tables_comparison.run_task(tables_comparison.TableTask("nothing", "linear", 0))
    spread = MADE["nothing"].draw(0)[3].std()
    assert regression["rmse"] == pytest.approx(spread, rel=0.05)
    assert regression["log_likelihood"] == pytest.approx(-0.5 * np.log(2 * np.pi * np.e * spread**2), abs=0.05)
    assert tables_comparison.run_task(tables_comparison.TableTask("separable", "linear", 0))["accuracy"] > 0.9


def test_made_tables_are_compared_draw_by_draw() -> None:
    scores = {"BALI": (1.0, 2.0, 9.0), "linear": (0.5, 0.5), "MLP": (0.0, 1.5)}  # a draw that only BALI has does not count
    lines = [
        {"set": "rings", "method": method, "fold": draw, "log_likelihood": score}
        for method, own in scores.items()
        for draw, score in enumerate(own)
    ]
    page = tables_comparison.to_markdown(lines)
    assert "| 400 | 2 | 2 | 1.500 ± 0.500 | 0.500 ± 0.000 | 0.750 ± 0.750 | 0.750 ± 0.250 |" in page
    assert "| 100 | 2 | 0 | – | – | – | – |" in page


def test_pages_in_the_repository_are_those_of_the_results() -> None:
    root = Path(__file__).parents[2]
    assert (root / "docs/tables.md").read_text() == tables_comparison.to_markdown(read_lines(root / "results/tables.jsonl"))
    assert (root / "docs/rows.md").read_text() == rows_time.to_markdown(read_lines(root / "results/rows.jsonl"))


def test_rows_page_counts_microseconds(tmp_path: Path) -> None:
    line = {"rows": 1000, "fit_seconds": 2.0, "predict_seconds": 0.1, "predict_rows": 1000, "steps": 5, "rmse": 1.1}
    (tmp_path / "r.jsonl").write_text(json.dumps(line) + "\n")
    page = rows_time.to_markdown(read_lines(tmp_path / "r.jsonl"))
    assert "| 1,000 | 2.0 | 10 | 5 | 2,000 | 0.10 | 1,000 | 1.100 |" in page
    assert "All bars are met." in page
    (tmp_path / "r.jsonl").write_text(json.dumps(line | {"fit_seconds": 11.0}) + "\n")
    assert "Missed: a fit of 1,000 rows." in rows_time.to_markdown(read_lines(tmp_path / "r.jsonl"))


def test_the_page_of_likelihoods_is_that_of_the_results() -> None:
    root = Path(__file__).parents[2]
    lines = read_lines(root / "results/likelihoods.jsonl")
    assert (root / "docs/likelihood_results.md").read_text() == likelihoods_page.to_markdown(lines)


def test_results_in_the_repository_meet_their_bars() -> None:
    root = Path(__file__).parents[2]
    lines = read_lines(root / "results/tables.jsonl")

    def mean(name: str, method: str, key: str) -> float:
        values = [line[key] for line in lines if line["set"] == name and line["method"] == method]
        assert len(values) == 5
        return float(sum(values) / 5)

    # Lines of BALI are taken away when its defaults change, until there is a new run; those of a set are judged if there.
    run = {line["set"] for line in lines if line["method"] == "BALI"}
    for name in run & set(tables_comparison.SETS):
        own = mean(name, "BALI", "log_likelihood")
        for other in ("MLP", "MC dropout"):
            assert own > mean(name, other, "log_likelihood"), (name, other)
    assert "diabetes" not in run or 0.85 <= mean("diabetes", "BALI", "coverage_90") <= 0.95
    seconds = {line["rows"]: line["fit_seconds"] for line in read_lines(root / "results/rows.jsonl")}
    said = (root / "docs/rows.md").read_text()
    missed = {n for n, taken in seconds.items() if taken > rows_time.BARS[n]}
    assert missed <= {300}  # as is known
    assert all(f"a fit of {n:,} rows" in said for n in missed)
    assert "All bars are met." not in said or not missed
