"""The comparison on tables: its tables, its methods' distributions, its ranks and its lines."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats
from typer.testing import CliRunner

from bali_benchmarks.commands.main import app
from bali_benchmarks.lines import append_line, read_lines
from bali_benchmarks.tables_study import boosted_trees, classical_models, deep_ensembles, table_runs
from bali_benchmarks.tables_study.comparison import Comparison, comparisons, mean_ranks
from bali_benchmarks.tables_study.densities import Fit, gaussians, smoothed_quantiles
from bali_benchmarks.tables_study.made_tables import MADE, N_TEST
from bali_benchmarks.tables_study.table_methods import METHODS
from bali_benchmarks.tables_study.table_runs import TableTask
from bali_benchmarks.tables_study.table_sets import FRIEDMAN, TABLES
from bali_benchmarks.tables_study.tables_bars import bars, bars_of_other_studies
from bali_benchmarks.tables_study.tables_page import to_markdown, with_error

REGRESSION = {"log_likelihood": 0.0, "rmse": 1.0, "rmse_se": 0.1, "crps": 0.5, "coverage_90": 0.9}
CLASSES = {"log_likelihood": -0.1, "accuracy": 0.9, "accuracy_se": 0.02, "brier": 0.1, "ece": 0.01}


def line(name: str, method: str, fold: int = 0, **scores: Any) -> dict[str, Any]:
    known = CLASSES if TABLES[name].classification else REGRESSION
    at = {"set": name, "method": method, "fold": fold, "rows": 100, "columns": 2, "core_seconds": 1.0, "fit_seconds": 1.0}
    return at | known | scores


# --- runs -------------------------------------------------------------------------------------------------------


@pytest.fixture
def ran(monkeypatch: pytest.MonkeyPatch) -> list[TableTask]:
    """Tasks that are run, in order; none takes any time, and every package is there."""
    found: list[TableTask] = []

    def fake(task: TableTask) -> dict[str, Any]:
        found.append(task)
        return line(task.name, task.method, task.fold)

    monkeypatch.setattr(table_runs, "run_limited", fake)
    monkeypatch.setattr("bali_benchmarks.tables_study.table_methods.find_spec", lambda name: object())
    return found


def test_only_what_is_missing_is_run(tmp_path: Path, ran: list[TableTask]) -> None:
    out, page = tmp_path / "t.jsonl", tmp_path / "t.md"
    every = table_runs.tasks(["wine", "jumps"])
    for task in every[:5]:
        append_line(out, line(task.name, task.method, task.fold))
    table_runs.run(out, page, sets=["wine"])
    assert ran == [task for task in every[5:] if task.name == "wine"]
    table_runs.run(out, page, sets=["wine", "jumps"])
    assert set(ran) == set(every[5:])
    assert len(ran) == len(every[5:])
    assert "### wine" in page.read_text()


def test_first_folds_come_first_and_what_is_timed_only_if_asked_for() -> None:
    every = table_runs.tasks()
    assert [task.fold for task in every] == sorted(task.fold for task in every)
    assert FRIEDMAN not in {task.name for task in every}
    assert {task.name for task in table_runs.tasks([FRIEDMAN], ["NGBoost"])} == {FRIEDMAN}
    assert not any(task.method == "XGBoost quantiles" and task.classification for task in every)


def test_lines_of_a_method_are_replaced(tmp_path: Path, ran: list[TableTask]) -> None:
    out = tmp_path / "t.jsonl"
    for name in ("wine", "jumps"):
        for method in ("BALI", "linear"):
            append_line(out, line(name, method, log_likelihood=-9.0))
    table_runs.run(out, sets=["wine"], again=["BALI"], folds=1)
    assert ran == [TableTask("wine", "BALI", 0)]
    kept = {(row["set"], row["method"]): row["log_likelihood"] for row in read_lines(out)}
    assert kept == {("wine", "linear"): -9.0, ("jumps", "BALI"): -9.0, ("jumps", "linear"): -9.0, ("wine", "BALI"): -0.1}


def test_a_run_stops_when_its_time_is_over(tmp_path: Path, ran: list[TableTask]) -> None:
    notes: list[str] = []
    table_runs.run(tmp_path / "t.jsonl", sets=["wine"], minutes=0.0, note=notes.append)
    assert ran == []
    assert "the next run goes on" in notes[-1]


def test_a_method_that_is_not_installed_is_left_out_with_a_word(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    notes: list[str] = []
    monkeypatch.setattr("bali_benchmarks.tables_study.table_methods.find_spec", lambda name: None)
    rows = table_runs.run(tmp_path / "t.jsonl", sets=["wine"], methods=["NGBoost", "linear"], folds=1, note=notes.append)
    assert [row["method"] for row in rows] == ["linear"]
    assert notes == ["NGBoost is left out: pip install 'bali-benchmarks[peers]' has it."]


def test_failures_and_overruns_have_a_line(monkeypatch: pytest.MonkeyPatch) -> None:
    def replaced(fit: Fit) -> None:
        monkeypatch.setitem(METHODS, "linear", METHODS["linear"].__class__("linear", "", fit, fit, most_rows=100))

    task = TableTask("jumps", "linear", 0)
    replaced(lambda X, y, seed: _raising())
    assert table_runs.run_limited(task)["failed"] == "ValueError: no solution"
    replaced(lambda X, y, seed: _sleeping())
    late = table_runs.run_limited(task, 0.2)
    assert (late["set"], late["method"], late["fold"], late["failed"]) == ("jumps", "linear", 0, "more than 0 seconds")
    assert table_runs.run_task(TableTask("sparse", "linear", 0))["failed"] == "more than 100 rows"


def _raising() -> Callable[..., Any]:
    raise ValueError("no solution")


def _sleeping() -> Callable[..., Any]:
    time.sleep(30.0)
    raise AssertionError


def test_the_command_knows_its_tables_and_methods(tmp_path: Path) -> None:
    files = ["--out", str(tmp_path / "t.jsonl"), "--page", str(tmp_path / "t.md")]
    for given, said in ((["--set", "boston"], "no set 'boston'"), (["--again", "bali"], "no method 'bali'")):
        result = CliRunner().invoke(app, ["tables", *given, *files], env={"COLUMNS": "200"})
        assert result.exit_code == 2
        assert said in result.output


# --- tables and methods -----------------------------------------------------------------------------------------


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


def test_splits_of_bundled_and_timed_tables_do_not_overlap() -> None:
    for name in ("diabetes", "wine", FRIEDMAN):
        split = TABLES[name].split(1)
        assert len(split.X_train) == len(split.y_train)
        assert not {tuple(row) for row in split.X_train} & {tuple(row) for row in split.X_test}


def test_linear_methods_find_what_is_linear() -> None:
    regression = table_runs.run_task(TableTask("nothing", "linear", 0))
    spread = MADE["nothing"].draw(0)[3].std()
    assert regression["rmse"] == pytest.approx(spread, rel=0.05)
    assert regression["log_likelihood"] == pytest.approx(-0.5 * np.log(2 * np.pi * np.e * spread**2), abs=0.05)
    assert table_runs.run_task(TableTask("separable", "linear", 0))["accuracy"] > 0.9


def test_scores_are_those_of_the_distribution() -> None:
    rng = np.random.default_rng(0)
    mean, std = rng.normal(size=300), rng.uniform(0.5, 2.0, 300)
    y = mean + std * rng.normal(size=300)
    found = table_runs.scores(gaussians(mean, std**2), y)
    expected = float(np.mean(stats.norm.logpdf(y, mean, std)))
    assert found["log_likelihood"] == pytest.approx(expected)
    assert found["log_likelihood_gaussian"] == pytest.approx(expected)
    assert found["rmse"] == pytest.approx(np.sqrt(np.square(y - mean).mean()))
    boots = [np.sqrt(np.square(y - mean)[rng.integers(300, size=300)].mean()) for _ in range(2000)]
    assert found["rmse_se"] == pytest.approx(np.std(boots), rel=0.1)
    assert found["coverage_90"] == pytest.approx(0.9, abs=0.06)


def test_quantiles_become_a_density() -> None:
    """Of an exponential law, whose quantiles are known: nearer to it than any Gaussian."""
    rng = np.random.default_rng(0)
    known = stats.expon.ppf(boosted_trees.LEVELS)
    fitted = smoothed_quantiles(lambda Z: np.tile(known, (len(Z), 1)), np.zeros((400, 1)), rng.exponential(size=400))
    y = rng.exponential(size=2000)
    predictive = fitted(np.zeros((2000, 1)))
    assert float(predictive.mean.mean()) == pytest.approx(1.0, abs=0.1)
    likelihood = float(predictive.log_prob(torch.as_tensor(y)).mean())
    assert float(np.mean(stats.norm.logpdf(y, 1.0, 1.0))) + 0.1 < likelihood < float(np.mean(stats.expon.logpdf(y)))


def _waves(n: int, seed: int) -> tuple[Any, Any]:
    rng = np.random.default_rng(seed)
    X = rng.uniform(-1.0, 1.0, (n, 2))
    return X, 5.0 + np.sin(3.0 * X[:, 0]) + 0.2 * rng.normal(size=n)


@pytest.mark.parametrize("fit", [deep_ensembles.regression, classical_models.gaussian_process_regression])
def test_smooth_methods_learn_a_wave_and_its_noise(fit: Fit, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deep_ensembles, "MAX_EPOCHS", 40)
    monkeypatch.setattr(deep_ensembles, "RATE", 5e-3)
    X, y = _waves(200, 0)
    found = table_runs.scores(fit(X, y, 0)(_waves(500, 1)[0]), _waves(500, 1)[1])
    assert found["rmse"] < 0.3
    assert 0.75 < found["coverage_90"] < 0.99


def test_deep_ensembles_tell_classes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deep_ensembles, "MAX_EPOCHS", 30)
    X, y, X_test, y_test = MADE["separable"].draw(0)
    predictive = deep_ensembles.classification(X, y, 0)(X_test)
    assert predictive.n_components == deep_ensembles.N_NETWORKS
    assert table_runs.scores(predictive, y_test)["accuracy"] > 0.85


@pytest.mark.parametrize("name", ["CatBoost", "XGBoost", "XGBoost quantiles", "NGBoost"])
def test_boosted_trees_learn_a_wave(name: str) -> None:
    if not METHODS[name].is_installed:
        pytest.skip("pip install 'bali-benchmarks[peers]' has it")
    fit = METHODS[name].regression
    assert fit is not None
    X, y = _waves(300, 0)
    X_test, y_test = _waves(500, 1)
    found = table_runs.scores(fit(X, y, 0)(X_test), y_test)
    assert found["rmse"] < 0.4
    assert 0.6 < found["coverage_90"] <= 1.0
    assert found["log_likelihood"] > float(np.mean(stats.norm.logpdf(y_test, y.mean(), y.std())))


# --- the page ---------------------------------------------------------------------------------------------------


def test_methods_are_compared_on_the_folds_that_all_have() -> None:
    lines = [line("jumps", "BALI", fold, log_likelihood=v) for fold, v in enumerate((1.0, 2.0, 9.0))]
    lines += [line("jumps", "linear", fold, log_likelihood=v) for fold, v in enumerate((0.0, 1.0))]
    lines += [line("jumps", "NGBoost") | {"failed": "ValueError: x"}, line(FRIEDMAN, "BALI")]
    (found,) = comparisons(lines)
    assert found.values("BALI", "log_likelihood").tolist() == [1.0, 2.0]
    assert found.failed == {"NGBoost": "ValueError: x"}
    page = to_markdown(lines)
    assert "| BALI | 1.500 ± 0.500 |" in page
    assert "| NGBoost | ValueError: x | – |" in page
    assert "the best on 1 of 1 tables" in page


def _three_methods() -> Comparison:
    lines = [line("jumps", "BALI", rmse=1.05), line("jumps", "linear", rmse=1.0), line("jumps", "NGBoost", rmse=1.0)]
    return comparisons(lines)[0]


def test_ranks_and_nearness_to_the_best() -> None:
    found = _three_methods()
    assert found.ranks("RMSE / accuracy") == {"BALI": 3.0, "linear": 1.5, "NGBoost": 1.5}
    assert found.ranks("log-likelihood") == dict.fromkeys(found.lines, 2.0)
    assert mean_ranks([found], "linear", "RMSE / accuracy") == (1.5, 3.0)
    assert found.is_near_best("BALI")
    worse = comparisons([line("jumps", "BALI", rmse=1.2), line("jumps", "linear")])[0]
    assert not worse.is_near_best("BALI")
    classes = comparisons([line("wine", "BALI", accuracy=0.91), line("wine", "linear", accuracy=0.92)])[0]
    assert classes.is_near_best("BALI")
    assert classes.ranks("RMSE / accuracy") == {"BALI": 2.0, "linear": 1.0}


def test_bars_are_judged_by_what_was_run() -> None:
    lines = [line("yacht", "BALI", log_likelihood=0.3, rmse=0.4), line("energy", "BALI", log_likelihood=-0.3, rmse=0.3)]
    lines += [line("spam", "BALI", log_likelihood=-0.10), line("spam", "CatBoost", log_likelihood=-0.12)]
    lines += [line(FRIEDMAN, "BALI", fit_seconds=7.0), line(FRIEDMAN, "NGBoost", fit_seconds=3.0)]
    verdicts = {bar.what.split(":")[0]: bar.verdict for bar in bars(lines, comparisons(lines))}
    assert verdicts["yacht"] == "met, so far"
    assert verdicts["energy"] == "**missed**, so far"
    assert verdicts["concrete"] == verdicts["telescope"] == "not run"
    assert verdicts["spam"] == "met"
    assert verdicts[FRIEDMAN] == "**missed**"
    assert verdicts["ahead of every method in mean rank by log-likelihood"] == "met, so far"
    other = [{"set": "airfoil", "method": "BALI", "nll_gaussian": -0.7, "nll_density": -0.8, "rmse": 0.1}]
    times = [{"rows": 1000, "fit_seconds": 9.0, "predict_rows": 1000, "predict_seconds": 2.0}]
    found = {bar.what: bar for bar in bars_of_other_studies(other, times)}
    assert found["a fit of 1,000 × 10 in at most 10 s"].verdict == "met"
    airfoil = next(bar for what, bar in found.items() if what.startswith("airfoil"))
    assert (airfoil.verdict, airfoil.measured) == ("**missed**", "-0.700, 0.100 over 1 seeds (own density -0.800)")


def test_figures_have_the_digits_that_say_something() -> None:
    assert with_error(np.array([0.12345])) == "0.123"
    assert with_error(np.array([54.321, 54.325])) == "54.32 ± 0.00"
    assert with_error(np.array([-1234.5])) == "-1234"
