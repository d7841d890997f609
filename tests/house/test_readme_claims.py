"""What the README says of results is what the files of results say."""

from __future__ import annotations

from pathlib import Path

import pytest

from bali_benchmarks.lines import read_lines
from bali_benchmarks.reproduce import paper_figures
from bali_benchmarks.reproduce.job import Line
from bali_benchmarks.reproduce.paper_settings import REGRESSION
from bali_benchmarks.reproduce.summary import METRICS, figure_of

ROOT = Path(__file__).parents[2]
README = " ".join((ROOT / "README.md").read_text(encoding="utf-8").split())


@pytest.fixture(scope="module")
def lines() -> list[Line]:
    return read_lines(ROOT / "results/reproduce-regression.jsonl")


@pytest.mark.parametrize("metric", ["rmse", "log_likelihood"])
def test_defaults_are_ahead_of_the_papers_methods_in_regression(lines: list[Line], metric: str) -> None:
    for name, setting in REGRESSION.items():
        ours = figure_of(lines, name, "ours", metric)
        assert ours is not None
        assert ours.n == setting.n_splits or f"{name} on {ours.n} of {setting.n_splits} splits so far" in README
        assert METRICS[metric][1] * (ours.mean - paper_figures.REGRESSION[metric][name].mean) < 0.0, name
        _, baseline = paper_figures.BEST_BASELINE[metric][name]
        assert METRICS[metric][1] * (ours.mean - baseline.mean) < 0.0, name


def test_figures_in_the_readme_are_those_of_the_lines(lines: list[Line]) -> None:
    for name in REGRESSION:
        rmse, log_likelihood = (figure_of(lines, name, "ours", metric) for metric in ("rmse", "log_likelihood"))
        assert rmse is not None
        assert log_likelihood is not None
        assert f"{name} {rmse.mean:.3f} / {log_likelihood.mean:.3f}" in README
