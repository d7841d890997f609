"""The comparison with the methods' authors: it resumes, its page says what the lines and the publications say."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats
from typer.testing import CliRunner

from bali_benchmarks import datasets, methods_comparison, methods_page, published
from bali_benchmarks.baselines.map import MAP
from bali_benchmarks.baselines.method import State, Task
from bali_benchmarks.baselines.selection import Budget, Fitted, fit_members
from bali_benchmarks.baselines.table import METHODS
from bali_benchmarks.commands.main import app
from bali_benchmarks.lines import append_line, read_lines
from bali_benchmarks.methods_comparison import MethodRun
from bali_benchmarks.methods_page import Comparison, MeanScore, figure, shortfalls, to_markdown
from bali_benchmarks.published import PUBLISHED, Published

ROOT = Path(__file__).parents[2]
TINY = Budget(steps=60, batch_size=16, n_checkpoints=3, n_samples=4)
N_SPLITS = 3


def stand_in(name: str = "yacht", n_rows: int = 60) -> datasets.Dataset:
    """A linear target far from unit scale, with published splits."""
    rng = np.random.default_rng(0)
    X = rng.normal(50.0, 9.0, (n_rows, 3))
    X[:, 2] = 4.0  # constant columns must do no harm
    y = 1000.0 + 20.0 * X[:, 0] + rng.normal(0.0, 10.0, n_rows)
    order = np.stack([rng.permutation(n_rows) for _ in range(N_SPLITS)])
    return datasets.Dataset(
        name, "regression", X, y, ("a", "b", "c"), "y", (), 0.2, N_SPLITS, order[:, : n_rows - 12], order[:, n_rows - 12 :]
    )


def lines_of(name: str, method: str, means: dict[str, float], spread: float = 0.1, n: int = 20) -> list[dict[str, Any]]:
    """Lines whose mean and standard error are known: half of them `spread` above, half below."""
    common = {"set": name, "method": method, "splits": n, "seconds": 30.0}
    return [common | {"split": k} | {m: v + (-1) ** k * spread for m, v in means.items()} for k in range(n)]


def fake_lines(job: MethodRun, budget: Budget, n_splits: int | None = None) -> list[dict[str, Any]]:
    found = lines_of(job.name, job.method, {"rmse": 1.0, "log_likelihood": -1.0}, n=n_splits or 4)
    return [line | {"of_splits": 4} for line in found]


def test_only_what_is_missing_is_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out, page, ran = tmp_path / "m.jsonl", tmp_path / "m.md", []

    def fake(job: MethodRun, budget: Budget, n_splits: int | None) -> list[dict[str, Any]]:
        ran.append(job)
        return fake_lines(job, budget, n_splits)

    monkeypatch.setattr(methods_comparison, "run_job", fake)
    for line in fake_lines(MethodRun("yacht", "pbp"), TINY):
        append_line(out, line)
    rows = methods_comparison.run(out, page, sets=("yacht", "energy"), methods=("map", "pbp"))
    assert ran == [MethodRun("yacht", "map"), MethodRun("energy", "map"), MethodRun("energy", "pbp")]
    assert rows == read_lines(out)
    assert len(rows) == 16
    assert page.read_text() == to_markdown(rows)
    methods_comparison.run(out, page, sets=("yacht", "energy"), methods=("map", "pbp"))
    assert len(ran) == 3


def test_a_job_that_was_stopped_while_written_is_run_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(methods_comparison, "run_job", fake_lines)
    out = tmp_path / "m.jsonl"
    whole = methods_comparison.run(out, sets=("yacht",), methods=("map", "pbp"))
    out.write_text("".join(out.read_text().splitlines(keepends=True)[:-1]))
    assert methods_comparison.run(out, sets=("yacht",), methods=("map", "pbp")) == whole == read_lines(out)


def test_some_splits_are_replaced_by_all_of_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(methods_comparison, "run_job", fake_lines)
    out, page = tmp_path / "m.jsonl", tmp_path / "m.md"
    some = methods_comparison.run(out, page, sets=("yacht",), methods=("map",), n_splits=2)
    assert len(some) == 2
    assert "Of the first splits only: MAP (2)." in " ".join(page.read_text().split())
    assert methods_comparison.run(out, page, sets=("yacht",), methods=("map",), n_splits=2) == some
    whole = methods_comparison.run(out, page, sets=("yacht",), methods=("map",))
    assert [row["split"] for row in whole] == [0, 1, 2, 3]
    assert whole == read_lines(out) == methods_comparison.run(out, page, sets=("yacht",), methods=("map",), n_splits=2)
    assert "Of the first splits only" not in page.read_text()


def test_jobs_are_all_methods_on_tables_and_two_on_images() -> None:
    every = methods_comparison.jobs()
    for name in methods_comparison.REGRESSION_SETS:
        assert [job.method for job in every if job.name == name] == list(METHODS)
    assert [job.method for job in every if job.name == "mnist"] == list(methods_comparison.MNIST_METHODS)
    with pytest.raises(ValueError, match=r"no set 'boston'.*yacht"):
        methods_comparison.jobs(("boston",))
    with pytest.raises(ValueError, match=r"no method 'sgld'.*pbp"):
        methods_comparison.jobs(("yacht",), ("sgld",))


def test_a_missing_extra_is_said_before_anything_is_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Wanting(MAP):
        def start(self, task: Task, generator: torch.Generator) -> State:
            raise ImportError("install this")

    monkeypatch.setitem(METHODS, "pbp", Wanting)
    monkeypatch.setattr(methods_comparison, "run_job", lambda job, budget, n_splits: pytest.fail("was run"))
    with pytest.raises(ImportError, match="install this"):
        methods_comparison.run(tmp_path / "m.jsonl", sets=("yacht",), methods=("map", "pbp"))


def test_an_interrupted_fit_leaves_no_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*args: Any, **kwargs: Any) -> Fitted:
        return replace(fit_members(*args, **kwargs), interrupted=True)

    monkeypatch.setattr(datasets, "load", stand_in)
    monkeypatch.setattr(methods_comparison, "fit_members", interrupted)
    with pytest.raises(KeyboardInterrupt):
        methods_comparison.run(tmp_path / "m.jsonl", sets=("yacht",), methods=("map",), budget=TINY)
    assert read_lines(tmp_path / "m.jsonl") == []


def test_scores_are_those_of_the_mixture_in_the_units_of_the_targets() -> None:
    """A second formulation: densities of SciPy for targets and networks scaled by hand."""
    data = stand_in()
    got = methods_comparison.regression_scores(data, METHODS["map"], TINY)
    assert len(got) == N_SPLITS
    x, y = [], []
    for k in range(N_SPLITS):
        split = data.split(k)
        scale = np.where(split.X_train.std(0) > 0, split.X_train.std(0), 1.0)
        x.append((split.X_train - split.X_train.mean(0)) / scale)
        y.append((split.y_train - split.y_train.mean()) / split.y_train.std())
    tensors = [torch.as_tensor(np.stack(a), dtype=torch.float32) for a in (x, y)]
    fitted = fit_members(
        METHODS["map"], tensors[0], tensors[1][..., None], hidden_layer_sizes=(50,), activation="relu", budget=TINY
    )
    for k, line in enumerate(got):
        split = data.split(k)
        scale = np.where(split.X_train.std(0) > 0, split.X_train.std(0), 1.0)
        test = torch.as_tensor((split.X_test - split.X_train.mean(0)) / scale, dtype=torch.float32)
        outputs = fitted.outputs(test.expand(N_SPLITS, -1, -1), 1, torch.Generator())[0, k, :, 0].double().numpy()
        mean = split.y_train.mean() + split.y_train.std() * outputs
        deviation = split.y_train.std() * math.sqrt(float(fitted.noise_variance()[k]))
        assert line["rmse"] == pytest.approx(np.sqrt(np.mean((split.y_test - mean) ** 2)), rel=1e-4)
        assert line["log_likelihood"] == pytest.approx(stats.norm.logpdf(split.y_test, mean, deviation).mean(), rel=1e-4)
        assert line["settings"] == fitted.settings[k]
        assert line["steps"] == fitted.steps[k]
    assert {"seconds", "noise_factor"} <= set(got[0])
    assert got[0]["budget"]["steps"] == TINY.steps


def test_a_real_run_from_data_to_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(datasets, "load", stand_in)
    out, page = tmp_path / "m.jsonl", tmp_path / "m.md"
    rows = methods_comparison.run(out, page, sets=("yacht",), methods=("pbp",), budget=TINY)
    assert [(row["set"], row["method"], row["split"]) for row in rows] == [("yacht", "pbp", k) for k in range(N_SPLITS)]
    ours = figure(rows, "yacht", "pbp", "rmse")
    assert ours is not None
    assert ours.mean < float(np.std(stand_in().y))  # it has learnt something
    assert f"{ours.mean:.3f} ± {ours.error:.3f}<br>1.015 ± 0.054<br>worse by" in page.read_text()
    assert f"up to {TINY.steps} steps of {TINY.batch_size} rows" in " ".join(page.read_text().split())


def test_images_are_fitted_with_the_settings_of_the_paper() -> None:
    rng = np.random.default_rng(0)
    y = rng.integers(0, 2, 300)
    x = (40 + 120 * y[:, None] + rng.integers(0, 60, (300, 9))).astype(np.uint8)
    index = np.arange(300)[None]
    data = datasets.Dataset(
        "mnist", "classification", x, y, (), "digit", ("0", "1"), 0.2, 1, index[:, :240], index[:, 240:], (3, 3)
    )
    for name in methods_comparison.MNIST_METHODS:
        line = methods_comparison.mnist_scores(data, name, steps=15, last_steps=5)
        assert line["accuracy"] > 0.95
        assert line["log_likelihood"] > -0.3
        assert line["steps"] == 20
        assert line["settings"]["prior_precision"] == pytest.approx(240 * 1e-4)


@pytest.mark.parametrize(
    ("metric", "ours", "gap", "verdict"),
    [
        ("rmse", MeanScore(1.0, 0.03), 0.0, "alike"),
        ("rmse", MeanScore(1.09, 0.03), 1.8, "alike"),
        ("rmse", MeanScore(1.15, 0.03), 3.0, "worse by 3.0"),
        ("rmse", MeanScore(0.85, 0.03), -3.0, "better by 3.0"),
        ("log_likelihood", MeanScore(0.85, 0.03), 3.0, "worse by 3.0"),
        ("log_likelihood", MeanScore(1.15, 0.03), -3.0, "better by 3.0"),
    ],
)
def test_verdicts_count_combined_standard_errors(metric: str, ours: MeanScore, gap: float, verdict: str) -> None:
    comparison = Comparison("yacht", "pbp", metric, ours, Published(1.0, 0.04))
    assert comparison.gap == pytest.approx(gap)
    assert comparison.verdict == verdict
    assert comparison.falls_short == verdict.startswith("worse")


def test_page_says_what_the_lines_say(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = lines_of("yacht", "pbp", {"rmse": 2.0, "log_likelihood": -1.634})
    rows += lines_of("concrete", "map", {"rmse": 5.0, "log_likelihood": -3.0})
    monkeypatch.setitem(published.REASONS, ("yacht", "pbp"), "Because of this.")
    page = to_markdown(rows)
    error = 0.1 * math.sqrt(20 / 19) / math.sqrt(20)
    gap = (2.0 - 1.015) / math.hypot(error, 0.054)
    assert f"2.000 ± {error:.3f}<br>1.015 ± 0.054<br>worse by {gap:.1f}" in page
    assert f"-1.634 ± {error:.3f}<br>-1.634 ± 0.016<br>alike" in page
    assert f"| concrete | 5.000 ± {error:.3f} |" in page
    assert "1 of 2 figures are no worse" in page
    assert page.count("Because of this.") == 1
    assert "All regressions together: 1.0 minutes" in page
    monkeypatch.delitem(published.REASONS, ("yacht", "pbp"))
    assert "Why is not known." in to_markdown(rows)
    assert [(c.name, c.method, c.metric) for c in shortfalls(rows)] == [("yacht", "pbp", "rmse")]


def test_page_judges_images() -> None:
    score = {
        "log_likelihood": -0.05,
        "ece": 0.004,
        "split": 0,
        "steps": 3000,
        "last_steps": 500,
        "seconds": 60.0,
        "set": "mnist",
    }
    rows = [score | {"method": "map", "accuracy": 0.9835}, score | {"method": "mc_dropout", "accuracy": 0.9851}]
    page = to_markdown(rows)
    assert "| MAP | 3,000 | 500 | 0.9835 | -0.0500 | 0.0040 | no: 0.25 points away | 60 |" in page
    assert "| MC dropout | 3,000 | 500 | 0.9851 | -0.0500 | 0.0040 | yes | 60 |" in page
    assert "MNIST: 2.0 minutes" in " ".join(page.split())


def test_published_figures_are_of_methods_and_sets_that_are_run() -> None:
    assert set(published.SOURCES) <= set(METHODS)
    assert set(PUBLISHED) == set(methods_page.METRICS)
    for by_set in PUBLISHED.values():
        assert tuple(by_set) == methods_comparison.REGRESSION_SETS
        assert all(list(by_method) == list(published.SOURCES) for by_method in by_set.values())


def test_results_in_the_repository_are_on_the_page_and_every_shortfall_has_a_reason() -> None:
    rows = read_lines(ROOT / "results/methods.jsonl")
    page = ROOT / "docs/methods.md"
    assert (page.read_text() if page.exists() else None) == (to_markdown(rows) if rows else None)
    assert [c for c in shortfalls(rows) if (c.name, c.method) not in published.REASONS] == []


def test_command_says_which_methods_there_are(tmp_path: Path) -> None:
    given = ["methods", "--method", "sgld", "--out", str(tmp_path / "m.jsonl"), "--page", str(tmp_path / "m.md")]
    result = CliRunner().invoke(app, given)
    assert result.exit_code == 2
    assert "sgld" in result.output
