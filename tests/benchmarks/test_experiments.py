"""The runs behind the documents: they resume, and their pages say what the files say."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from bali.files import ModelFileError
from bali_benchmarks import rows_time, seeds_spread
from bali_benchmarks.commands.main import app
from bali_benchmarks.likelihoods import likelihoods_page
from bali_benchmarks.lines import append_line, read_lines, write_lines
from bali_benchmarks.tables_study import table_runs


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


def test_pages_in_the_repository_are_those_of_the_results() -> None:
    root = Path(__file__).parents[2]
    assert (root / "docs/tables.md").read_text() == table_runs.page_of(root / "results/tables.jsonl")
    assert (root / "docs/rows.md").read_text() == rows_time.to_markdown(read_lines(root / "results/rows.jsonl"))


def test_rows_page_counts_microseconds(tmp_path: Path) -> None:
    line = {"rows": 1000, "fit_seconds": 2.0, "predict_seconds": 0.1, "predict_rows": 1000, "steps": 5, "rmse": 1.1}
    line |= {"threads": 2, "processor_seconds": 3.0}
    (tmp_path / "r.jsonl").write_text(json.dumps(line) + "\n")
    page = rows_time.to_markdown(read_lines(tmp_path / "r.jsonl"))
    assert "| 1,000 | 2.0 | 10 | 3.0 | 2 | 5 | 2,000 | 0.10 | 1,000 | 1.100 |" in page
    assert "All bars are met." in page
    (tmp_path / "r.jsonl").write_text(json.dumps(line | {"fit_seconds": 11.0}) + "\n")
    assert "Missed: a fit of 1,000 rows." in rows_time.to_markdown(read_lines(tmp_path / "r.jsonl"))


def test_seeds_run_only_what_is_missing_and_a_wide_spread_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out, page, ran = tmp_path / "s.jsonl", tmp_path / "s.md", []

    def fake(name: str, seed: int) -> dict[str, Any]:
        ran.append((name, seed))
        wide = 0.1 if name == "energy" else 0.01
        return {"set": name, "seed": seed, "log_likelihood": wide * (-1) ** seed, "rmse": 1.0}

    monkeypatch.setattr(seeds_spread, "run_seed", fake)
    seeds_spread.run(out, page, ["yacht", "energy"])
    assert len(ran) == 2 * seeds_spread.N_SEEDS
    seeds_spread.run(out, page, ["yacht", "energy"])
    assert len(ran) == 2 * seeds_spread.N_SEEDS
    said = page.read_text()
    assert f"| energy | 10 | 0.000 | {0.1 * (10 / 9) ** 0.5:.3f} | -0.100, 0.100 | 1.000 | 0.000 | missed |" in said
    assert "| yacht | 10 | 0.000 | 0.011 | -0.010, 0.010 | 1.000 | 0.000 | met |" in said
    with pytest.raises(ValueError, match="no set 'mars'"):
        seeds_spread.run(out, page, ["mars"])


def test_the_page_of_likelihoods_is_that_of_the_results() -> None:
    root = Path(__file__).parents[2]
    lines = read_lines(root / "results/likelihoods.jsonl")
    assert (root / "docs/likelihood_results.md").read_text() == likelihoods_page.to_markdown(lines)


def test_results_in_the_repository_meet_their_bars() -> None:
    root = Path(__file__).parents[2]
    seconds = {line["rows"]: line["fit_seconds"] for line in read_lines(root / "results/rows.jsonl")}
    said = (root / "docs/rows.md").read_text()
    missed = {n for n, taken in seconds.items() if taken > rows_time.BARS[n]}
    assert missed <= {300}  # as is known
    assert all(f"a fit of {n:,} rows" in said for n in missed)
    assert "All bars are met." not in said or not missed
