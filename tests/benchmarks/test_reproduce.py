"""The paper's experiments again: the table of settings is the paper's, runs resume, the page says what the lines say."""

from __future__ import annotations

import io
import math
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
from rich.console import Console
from scipy import stats
from torch import Tensor
from typer.testing import CliRunner

from bali import LayerwiseInference
from bali_benchmarks import datasets
from bali_benchmarks.commands.main import app
from bali_benchmarks.lines import read_lines
from bali_benchmarks.published import PUBLISHED, Published
from bali_benchmarks.reproduce import (
    classification,
    experiments,
    long_runs,
    paper_figures,
    paper_settings,
    pools,
    regression,
    summary,
)
from bali_benchmarks.reproduce.courses import BaliCourse
from bali_benchmarks.reproduce.job import Job, Line
from bali_benchmarks.reproduce.results_page import to_markdown
from bali_benchmarks.reproduce.summary import Figure
from bali_benchmarks.some_members import take_members
from support.stand_ins import bent_line

QUIET = Console(file=io.StringIO())


def lines_of(name: str, method: str, scores: dict[str, float], spread: float = 0.1, n: int = 4) -> list[Line]:
    """Lines with known means and standard errors: half of them `spread` above, half below."""
    common = {"experiment": "regression", "set": name, "method": method, "job_split": None, "quick": False, "lines": n}
    values = [{m: v + (-1) ** k * spread for m, v in scores.items()} for k in range(n)]
    return [common | {"split": k, "seconds": 30.0, "share": 1.0} | value for k, value in enumerate(values)]


def trained(pool: pools.Pool, setting: paper_settings.PaperSetting) -> LayerwiseInference:
    course = BaliCourse(pool, setting)
    long_runs.train(course, setting.n_steps, long_runs.NoWatch())
    return course.inference


# --- settings ---------------------------------------------------------------------------------------------------


def test_rate_falls_by_five_after_three_and_four_fifths_of_the_steps() -> None:
    yacht = paper_settings.REGRESSION["yacht"]
    steps = (1, 12_000, 12_001, 16_000, 16_001, 20_000)
    assert [yacht.rate_at(step) for step in steps] == pytest.approx([0.2, 0.2, 0.04, 0.04, 0.008, 0.008])


def test_settings_are_those_of_the_papers_tables() -> None:
    """By way of the numbers it prints: α, β, σ_r², N_eff/N, batch, steps."""

    def row(s: paper_settings.PaperSetting) -> tuple[Any, ...]:
        return s.step_size, s.ema_rate, s.prior_variance, s.effective_share, s.batch_size, s.n_steps

    small = (0.3, 0.2, 40, 1, None, 20_000)
    assert [row(paper_settings.REGRESSION[name]) for name in ("yacht", "concrete", "energy")] == [small] * 3
    assert row(paper_settings.REGRESSION["redwine"]) == (0.3, 0.2, 40, 1, 1024, 20_000)
    assert (
        row(paper_settings.REGRESSION["kin8nm"])
        == row(paper_settings.REGRESSION["powerplant"])
        == (0.3, 0.2, 40, 0.25, 1024, 20_000)
    )
    assert row(paper_settings.REGRESSION["protein"]) == (0.3, 0.1, 20, 0.25, 2048, 30_000)
    assert [row(s) for s in paper_settings.CLASSIFICATION.values()] == [
        (0.1, 0.1, 10, 1 / 4, 2048, 20_000),
        (0.5, 0.1, 8, 1 / 10, 2048, 20_000),
        (0.25, 0.05, 10, 1 / 100, 2048, 30_000),
        (0.25, 0.1, 10, 1 / 50, 2048, 30_000),
        (0.25, 0.1, 10, 1 / 50, 2048, 30_000),
    ]
    assert {name: s.learning_rate for name, s in paper_settings.ADAM.items() if s.learning_rate != 0.001} == {
        "mnist": 0.002,
        "fashion_mnist": 0.002,
    }


def test_settings_reach_the_inference(monkeypatch: pytest.MonkeyPatch) -> None:
    """Priors, N_eff and the schedule as the inference holds them; the first layer is unscaled."""
    setting = replace(paper_settings.REGRESSION["kin8nm"], n_steps=3, n_splits=2)
    pool = pools.table_pool(pools.splits_of(bent_line("kin8nm"), setting, published=True), 0)
    rates: list[float] = []
    step = LayerwiseInference.step

    def noting(self: LayerwiseInference, x: Tensor, y: Tensor, ema_rate: float) -> Tensor:
        rates.append(ema_rate)
        return step(self, x, y, ema_rate)

    monkeypatch.setattr(LayerwiseInference, "step", noting)
    inference = trained(pool, setting)
    used = inference.setup.settings
    assert used.prior_variance == {"0": 40.0, "2": pytest.approx(40.0 / 51)}
    assert used.effective_size == pytest.approx(60 / 4)
    assert (used.noise_floor, used.output_noise_floor, used.target_noise, used.reparam) == (0.01, 1e-4, True, "weight")
    assert rates == pytest.approx([0.2, 0.04, 0.008])
    assert inference.setup.network.members == 2
    assert inference.state.step == 3


def test_pool_holds_each_split_at_its_own_scale() -> None:
    data = bent_line("yacht")
    pool = pools.table_pool(pools.splits_of(data, paper_settings.REGRESSION["yacht"].quick(), published=True), 0)
    for k in range(2):
        split = data.split(k)
        own = pool.x[pool.rows[k]]
        varying = split.X_train[:, :2]
        expected = (varying - varying.mean(0)) / varying.std(0)
        np.testing.assert_allclose(own[:, :2].numpy(), expected, atol=1e-5)
        assert not own[:, 2].any()
        back = pool.y[pool.rows[k], 0].double().numpy() * pool.scale[k] + pool.mean[k]
        np.testing.assert_allclose(back, split.y_train, rtol=1e-5)
        np.testing.assert_array_equal(pool.y_test[k].numpy(), split.y_test)


# --- regression -------------------------------------------------------------------------------------------------


def test_regression_scores_are_those_of_each_members_mixture() -> None:
    """A second formulation: all members predicted at once, densities of SciPy at targets scaled by hand."""
    data, setting = bent_line("energy"), paper_settings.REGRESSION["energy"].quick()
    got = regression.paper_scores(data, setting, published=True)
    pool = pools.table_pool(pools.splits_of(data, setting, published=True), 0)
    inference = trained(pool, setting)
    for k, line in enumerate(got):
        one = take_members(inference, [k]).predict(pool.x_test[k], setting.n_samples)
        means = one.means[..., 0].double().numpy() * pool.scale[k] + pool.mean[k]  # type: ignore[attr-defined]
        std = one.noise[:, 0].double().sqrt().numpy() * pool.scale[k]  # type: ignore[attr-defined]
        y = data.split(k).y_test
        assert line["rmse"] == pytest.approx(np.sqrt(((means.mean(0) - y) ** 2).mean()), rel=1e-6)
        density = stats.norm.pdf(y, means, std).mean(0)
        assert line["log_likelihood"] == pytest.approx(np.log(density).mean(), rel=1e-5)
        # The line is a good fit: the noise is 10, the targets' own spread more than ten times as much.
        assert line["rmse"] < 45
        assert line["log_likelihood"] > stats.norm.logpdf(y, y.mean(), y.std()).mean() + 0.5
        assert line["settings"]["step_size"] == 0.3
        assert line["settings"]["output_noise_floor"] == 1e-4


@pytest.fixture
def two_sets() -> Iterator[None]:
    """One has all rows in a batch, the other mini-batches. The others come back in their old order."""
    kept = {
        "yacht": paper_settings.REGRESSION["yacht"],
        "redwine": replace(paper_settings.REGRESSION["redwine"], batch_size=40),
    }
    with patch.dict(paper_settings.REGRESSION, kept, clear=True):
        yield


@pytest.mark.usefixtures("two_sets")
def test_quick_regression_runs_resumes_and_writes_its_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(datasets, "load", bent_line)
    page, file = tmp_path / "page" / "results.md", tmp_path / "reproduce-regression.jsonl"
    experiments.run(["regression"], tmp_path, page, quick=True, console=QUIET)
    rows = read_lines(file)
    assert [(r["set"], r["method"]) for r in rows].count(("yacht", "ours")) == 2
    assert len(rows) == 2 * 3 * 2
    assert all(r["rmse"] < 120 and r["version"] and "seconds" in r for r in rows)
    assert "| yacht | 0.642 ± 0.042 |" in page.read_text()
    assert "A quick run" in page.read_text()

    # The last line is lost, as if the run had been stopped while it wrote: that job alone is run again.
    lost = rows[-1]
    file.write_text("".join(file.read_text().splitlines(keepends=True)[:-1]))
    ran, run_job = [], experiments.run_job

    def noted(job: Job) -> tuple[Job, list[Line]]:
        ran.append(job)
        return run_job(job)

    monkeypatch.setattr(experiments, "run_job", noted)
    experiments.run(["regression"], tmp_path, page, quick=True, console=QUIET)
    assert [(job.name, job.method, job.split) for job in ran] == [(lost["set"], lost["method"], lost["job_split"])]
    again = read_lines(file)
    assert len(again) == len(rows)
    assert again[-1]["rmse"] == lost["rmse"]  # seeded


def test_full_jobs_are_as_many_as_the_paper_has_splits() -> None:
    every = regression.jobs(quick=False)
    assert sum(job.method == "ours" for job in every) == 6 * 20 + 5
    assert sum(job.split is None for job in every) == 2 * 7
    assert len({job.key for job in every}) == len(every)
    assert all(job.cost >= 1 for job in every)


# --- figures and page -------------------------------------------------------------------------------------------


def test_differences_are_paired() -> None:
    rows = lines_of("yacht", "ours", {"rmse": 2.0}) + lines_of("yacht", "paper", {"rmse": 1.5})
    difference = summary.paired_difference(rows, "yacht", "rmse", "ours", "paper")
    assert difference is not None
    assert difference.mean == pytest.approx(0.5)
    assert difference.error == pytest.approx(0.0, abs=1e-12)  # each alone has an error of 0.1/√3
    alone = summary.figure_of(rows, "yacht", "ours", "rmse")
    assert alone is not None
    assert alone.error == pytest.approx(0.1 / math.sqrt(3))
    assert summary.paired_difference(rows, "yacht", "rmse", "ours", "other") is None


@pytest.mark.parametrize(
    ("metric", "mean", "said"),
    [
        ("rmse", 1.0, "alike"),
        ("rmse", 1.5, "worse by 10.0"),
        ("rmse", 0.5, "better by 10.0"),
        ("log_likelihood", 1.5, "better by 10.0"),
        ("accuracy", 0.5, "worse by 10.0"),
        ("ece", 1.5, "worse by 10.0"),
    ],
)
def test_verdicts_know_which_way_is_worse(metric: str, mean: float, said: str) -> None:
    assert summary.verdict(Figure(mean, 0.03, 20), Published(1.0, 0.04), metric) == said


def test_what_is_not_finished_is_said() -> None:
    rows = [{"set": "yacht", "method": "ours", "share": 1.0}, {"set": "energy", "method": "paper", "share": 0.1}]
    said = summary.unfinished(rows, {"yacht": 2, "energy": 1, "concrete": 5}, ("paper", "ours"))
    assert said == "Not in full: yacht 1 of 2 splits (`ours`); energy 10 % of the steps (`paper`)."
    assert summary.unfinished(rows[:1], {"yacht": 1}, ("ours",)) == ""


def test_longest_runs_count_and_only_runs_of_one_length_are_compared() -> None:
    def row(method: str, share: float, name: str = "spam") -> Line:
        return {"set": name, "method": method, "share": share, "split": 0}

    rows = [row("paper", 0.05), row("paper", 1.0), row("map", 0.05), row("paper", 0.05, "telescope")]
    assert summary.longest(rows) == rows[1:]
    assert summary.of_one_length(rows, "spam", ("paper", "map")) == [rows[0], rows[2]]
    assert summary.of_one_length(rows, "spam", ("paper", "local")) == [rows[1]]  # there is nothing to compare with
    assert summary.of_one_length([rows[1], rows[2]], "spam", ("paper", "map")) == []
    assert summary.of_one_length(rows, "mnist", ("paper", "map")) == []


def test_rounding_of_published_figures_is_no_difference() -> None:
    assert summary.verdict(Figure(0.8674, 0.0001, 5), Published(0.867, 0.0), "accuracy") == "alike"


def test_page_says_what_the_lines_say() -> None:
    rows = lines_of("energy", "paper", {"rmse": 0.451, "log_likelihood": -0.61})
    page = to_markdown({"regression": rows})
    assert "| energy | 0.451 ± 0.016 | 0.451 ± 0.058 | alike | – | – | – | – | – |" in page
    assert "| regression | 0.5 |" in page
    assert "A quick run" not in page
    assert "## Regression" not in to_markdown({"regression": []})


def test_defaults_are_set_beside_the_best_baseline() -> None:
    page = to_markdown({"regression": lines_of("energy", "ours", {"rmse": 0.2, "log_likelihood": -1.212}, spread=0.01)})
    assert "| energy | Noisy K-FAC | 0.485 ± 0.023 | 0.200 ± 0.006 | better by 12.0 |" in page
    assert "| energy | MC dropout | -1.212 ± 0.005 | -1.212 ± 0.006 | alike |" in page


@pytest.mark.parametrize(("metric", "best"), [("rmse", min), ("log_likelihood", max)])
def test_the_best_baseline_is_the_best_of_those_published(metric: str, best: Any) -> None:
    for name, by_method in PUBLISHED[metric].items():
        assert paper_figures.BEST_BASELINE[metric][name][1] == best(by_method.values())
    assert paper_figures.BEST_BASELINE[metric].keys() == paper_settings.REGRESSION.keys()


def test_command_says_which_experiments_there_are(tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["reproduce", "regression", "--set", "cifar", "--out", str(tmp_path)])
    assert result.exit_code == 2
    assert "no set 'cifar'" in result.output
    result = CliRunner().invoke(app, ["reproduce", "cifar", "--out", str(tmp_path)])
    assert result.exit_code == 2
    assert "cifar" in result.output


def test_command_without_data_says_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(name: str) -> datasets.Dataset:
        raise datasets.DataError(f"{name!r} is not here: run `bali-benchmarks data fetch {name}`")

    monkeypatch.setattr(datasets, "load", absent)
    result = CliRunner().invoke(app, ["reproduce", "regression", "--quick", "--out", str(tmp_path / "out")])
    assert result.exit_code == 1
    assert "bali-benchmarks data fetch" in result.output


def test_page_in_the_repository_is_that_of_the_results() -> None:
    root = Path(__file__).parents[2]
    rows = {kind: read_lines(root / f"results/reproduce-{kind}.jsonl") for kind in experiments.RUNNERS}
    full = {kind: [line for line in found if not line["quick"]] for kind, found in rows.items()}
    page = root / "docs/results.md"
    assert (page.read_text() if page.exists() else None) == (to_markdown(full) if any(full.values()) else None)


@pytest.mark.data
def test_a_quick_look_at_everything(tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["reproduce", "all", "--quick", "--out", str(tmp_path)])
    assert result.exit_code == 0, result.output
    page = (tmp_path / "results.md").read_text()
    pictures = re.findall(r"\]\((images/[^)]+)\)", page)
    assert len(pictures) == 4 * 3 + 2 * len(classification.CURVES) + len(classification.OTHER)
    assert all((tmp_path / picture).exists() for picture in pictures)
    found = {kind: read_lines(tmp_path / f"reproduce-{kind}.jsonl") for kind in experiments.RUNNERS}
    # Better than guessing everywhere, after a few steps on a few rows.
    spreads = {"yacht": 15.0, "concrete": 16.6, "energy": 10.1, "redwine": 0.81, "kin8nm": 0.26, "powerplant": 17.0}
    for row in found["regression"]:
        assert row["rmse"] < spreads.get(row["set"], 6.1)
    chances = {"mnist": 0.1, "fashion_mnist": 0.1, "spam": 0.61, "telescope": 0.65, "diabetes": 0.7}
    for row in found["classification"]:
        assert row["accuracy"] > chances[row["set"]] + 0.05
    lines = {"synthetic": 6, "bbb-synthetic": 9, "local-reparam": 6, "regression": 7 * 6, "classification": (4 * 5 + 4) * 2}
    assert lines.keys() <= found.keys()
    assert sum(len(found[kind]) for kind in lines) == sum(lines.values())
    assert all(found.values())


def test_one_method_one_set_and_a_share_of_the_steps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Job] = []

    def fake(job: Job) -> list[Line]:
        asked.append(job)
        return [{"rmse": job.share, "seconds": 1.0}]

    jobs = [Job("regression", "yacht", method, None, cost=100) for method in ("paper", "paper-random")]
    jobs += [Job("regression", "yacht", "ours", 0), Job("regression", "energy", "ours", 0)]
    monkeypatch.setitem(experiments.EXPERIMENTS, "regression", lambda quick: jobs)
    monkeypatch.setitem(experiments.RUNNERS, "regression", fake)
    monkeypatch.setattr(experiments, "to_markdown", lambda rows, quick: "")
    monkeypatch.setattr("bali_benchmarks.reproduce.pictures.draw", lambda rows, images: None)

    def lines(share: float, methods: tuple[str, ...] = (), sets: tuple[str, ...] = ("yacht",)) -> list[tuple[str, float]]:
        asked.clear()
        quiet = Console(file=io.StringIO())
        experiments.run(
            ["regression"], tmp_path, tmp_path / "page.md", methods=methods, sets=sets, share=share, console=quiet
        )
        rows = read_lines(tmp_path / "reproduce-regression.jsonl")
        return sorted((row["method"], row["share"]) for row in rows)

    assert lines(0.1, ("paper",)) == [("paper", 0.1)]
    assert asked[0].cost == 10
    assert lines(0.1) == [("ours", 1.0), ("paper", 0.1), ("paper-random", 0.1)]  # the estimator is not shortened
    assert {job.method for job in asked} == {"ours", "paper-random"}
    # The shorter run stays beside the longer one.
    assert lines(0.5, ("paper",)) == [("ours", 1.0), ("paper", 0.1), ("paper", 0.5), ("paper-random", 0.1)]
    assert lines(0.2)[1:] == [("paper", 0.1), ("paper", 0.5), ("paper-random", 0.1), ("paper-random", 0.2)]
    assert [job.method for job in asked] == ["paper-random"]
    assert lines(0.2, sets=())[:2] == [("ours", 1.0), ("ours", 1.0)]  # energy was not asked for before
    assert paper_settings.REGRESSION["yacht"].shortened(0.1).n_steps == 2000
    with pytest.raises(ValueError, match=r"no method 'laplace' in these experiments; there are ours, paper, paper-random"):
        lines(1.0, ("laplace",))
    with pytest.raises(ValueError, match=r"no set 'mnist' in these experiments; there are energy, yacht"):
        lines(1.0, sets=("mnist",))


def test_every_job_knows_its_work_and_takes_all_steps() -> None:
    for quick in (False, True):
        every = [job for name in experiments.EXPERIMENTS for job in experiments.EXPERIMENTS[name](quick)]
        assert {job.share for job in every} == {1.0}
        assert len({job.cost for job in every}) > 3
