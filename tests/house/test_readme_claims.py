"""What the README says of results is what the files of results say."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from bali_benchmarks.lines import read_lines
from bali_benchmarks.reproduce import paper_figures
from bali_benchmarks.reproduce.job import Line
from bali_benchmarks.reproduce.paper_settings import CLASSIFICATION, REGRESSION
from bali_benchmarks.reproduce.summary import METRICS, figure_of, gap, verdict

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def lines() -> dict[str, list[Line]]:
    return {kind: read_lines(ROOT / f"results/reproduce-{kind}.jsonl") for kind in ("regression", "classification")}


@pytest.mark.parametrize("metric", ["rmse", "log_likelihood"])
def test_defaults_are_ahead_of_the_papers_methods_in_regression(lines: dict[str, list[Line]], metric: str) -> None:
    for name, setting in REGRESSION.items():
        ours = figure_of(lines["regression"], name, "ours", metric)
        assert ours is not None
        assert ours.n == setting.n_splits
        assert METRICS[metric][1] * (ours.mean - paper_figures.REGRESSION[metric][name].mean) < 0.0, name
        _, baseline = paper_figures.BEST_BASELINE[metric][name]
        if name == "redwine":
            assert verdict(ours, baseline, metric) == "alike"
        else:
            assert METRICS[metric][1] * (ours.mean - baseline.mean) < 0.0, name


@pytest.mark.parametrize("metric", ["accuracy", "ece"])
def test_defaults_are_better_or_within_the_error_on_all_classifications(lines: dict[str, list[Line]], metric: str) -> None:
    for name, setting in CLASSIFICATION.items():
        ours = figure_of(lines["classification"], name, "ours", metric)
        assert ours is not None
        assert ours.n == setting.n_splits
        assert gap(ours, paper_figures.CLASSIFICATION["paper"][metric][name], metric) <= 1.0, name


def test_the_area_under_the_roc_curve_in_the_readme_is_that_of_the_lines(lines: dict[str, list[Line]]) -> None:
    own = [r["ood"]["entropy"]["auroc"] for r in lines["classification"] if r["set"] == "mnist" and r["method"] == "ours"]
    assert len(own) == CLASSIFICATION["mnist"].n_splits
    text = " ".join((ROOT / "README.md").read_text().split())
    assert f"by their entropy (area under the ROC curve: {np.mean(own):.3f})" in text
