"""The study of the defaults: what is run, that it resumes, and that the page says what the lines say."""

from __future__ import annotations

import io
import warnings
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from rich.console import Console
from sklearn.exceptions import ConvergenceWarning
from typer.testing import CliRunner

from bali.conjugate.linalg import NumericalError
from bali.estimators import BALIRegressor, defaults
from bali.predictive import metrics
from bali_benchmarks import datasets
from bali_benchmarks.baselines.table import METHODS as BASELINES
from bali_benchmarks.commands.main import app
from bali_benchmarks.defaults_study import cases as table
from bali_benchmarks.defaults_study import rules, sensitivity_fits, sensitivity_runs
from bali_benchmarks.defaults_study.cases import FACTORS, SETS, Case, Line, cases, key_of, run_case, task_of
from bali_benchmarks.defaults_study.costs import BAR, costs
from bali_benchmarks.defaults_study.sensitivity_fits import METHODS, StudyFit, StudyTask, Values, scaled
from bali_benchmarks.defaults_study.sensitivity_page import to_markdown
from bali_benchmarks.lines import append_line, read_lines, write_lines
from bali_benchmarks.reproduce.paper_settings import REGRESSION, PaperSetting

ROOT = Path(__file__).parents[2]
QUIET = Console(file=io.StringIO())
TINY: dict[str, Any] = {"max_iter": 5, "n_members": 1, "n_samples": 16}


def stand_in(name: str, n_rows: int = 90) -> datasets.Dataset:
    """A bent line far from unit scale, with two published splits."""
    rng = np.random.default_rng(len(name))
    X = rng.normal(50.0, 9.0, (n_rows, 4))
    y = 1000.0 + 20.0 * np.abs(X[:, 0] - 50.0) + rng.normal(0.0, 10.0, n_rows)
    order = np.stack([rng.permutation(n_rows) for _ in range(2)])
    index = order[:, : n_rows - 30], order[:, n_rows - 30 :]
    return datasets.Dataset(name, "regression", X, y, ("a", "b", "c", "d"), "y", (), 1 / 3, 2, *index)


@pytest.fixture
def tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    """Few steps on few rows, and two hyperparameters of each method."""
    monkeypatch.setattr(datasets, "load", stand_in)
    monkeypatch.setattr(sensitivity_fits, "QUICK_DEFAULTS", TINY)
    monkeypatch.setattr(sensitivity_fits, "QUICK_STEPS", 5)
    monkeypatch.setattr(PaperSetting, "quick", lambda self: replace(self, n_steps=5, n_samples=16, n_splits=2))
    for name, studied in METHODS.items():
        monkeypatch.setitem(METHODS, name, replace(studied, hyperparameters=studied.hyperparameters[:2]))


def line_of(method: str, name: str, split: int, h: str | None, factor: float, score: float, **more: Any) -> Line:
    line = {"method": method, "set": name, "split": split, "hyperparameter": h, "factor": factor, "quick": False}
    size = {"rows": 277, "columns": 6, "seconds": 30.0, "chosen": None, "diverged": False}
    return line | size | {"log_likelihood": score, "rmse": 2.0} | more


# --- what is run ------------------------------------------------------------------------------------------------


def test_every_method_is_run_as_it_is_and_with_each_hyperparameter_scaled_both_ways() -> None:
    every = cases(n_splits=2)
    assert len({case.key for case in every}) == len(every)
    assert SETS == ("yacht", "concrete", "energy", "redwine", "kin8nm", "powerplant", "protein")
    for method, studied in METHODS.items():
        for name in SETS:
            for split in (0, 1):
                own = [c for c in every if (c.method, c.name, c.split) == (method, name, split)]
                assert [c for c in own if c.hyperparameter is None] == [Case(method, name, split)]
                assert {(c.hyperparameter, c.factor) for c in own if c.hyperparameter} == {
                    (h, f) for h in studied.hyperparameters for f in (1 / 3, 3.0)
                }
                assert {c.default for c in own} == {Case(method, name, split)}
    assert {c.split for c in cases(n_splits=9) if c.name == "protein"} == set(range(5))  # all that were published
    with pytest.raises(ValueError, match=r"no set 'boston'.*yacht"):
        cases(("boston",))
    with pytest.raises(ValueError, match=r"no method 'sgld'.*noisy_kfac"):
        cases(methods=("sgld",))


def test_hyperparameters_are_those_of_the_methods() -> None:
    assert set(METHODS["bali"].hyperparameters) <= set(BALIRegressor().get_params())
    assert set(METHODS["before"].hyperparameters) <= {field.name for field in fields(PaperSetting)}
    for name in ("noisy_kfac", "map"):
        method = BASELINES[name]()
        assert all(hasattr(method, h) for h in METHODS[name].hyperparameters)
        assert set(BASELINES[name].grid[0]) <= set(METHODS[name].hyperparameters)  # what validation chooses is scaled


def test_scaling_keeps_lists_whole_numbers_and_bounds() -> None:
    assert scaled("prior_variance", (1.0, 40.0), 3.0) == [3.0, 120.0]
    assert scaled("max_iter", 1000, 1 / 3) == 333
    assert scaled("max_iter", 1, 1 / 3) == 1
    assert scaled("ema_rate", 0.5, 3.0) == 1.0
    assert scaled("step_size", 0.5, 3.0) == 1.5


def test_values_around_which_is_scaled_are_those_that_the_estimator_uses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(datasets, "load", stand_in)
    monkeypatch.setattr(sensitivity_fits, "QUICK_DEFAULTS", TINY)
    task = task_of(Case("bali", "yacht", 1, quick=True))
    values = METHODS["bali"].values(task)
    assert set(values) == set(METHODS["bali"].hyperparameters)
    assert values["prior_variance"] == BALIRegressor().prior_variance
    assert values["batch_size"] == defaults.course(500).batch_size
    assert values["max_iter"] == TINY["max_iter"]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        given, own = (METHODS["bali"].fit(task, changed).predictive for changed in (values, {}))
    torch.testing.assert_close(given.mean, own.mean)
    torch.testing.assert_close(given.std, own.std)


def test_papers_settings_are_shortened_and_otherwise_the_papers() -> None:
    task = StudyTask("redwine", 0, stand_in("redwine").split(0), quick=False)
    assert sensitivity_fits.before_setting(task) == replace(REGRESSION["redwine"], n_steps=sensitivity_fits.BEFORE_STEPS)
    assert METHODS["before"].values(task) == {
        "step_size": 0.3,
        "ema_rate": 0.2,
        "prior_variance": 40.0,
        "effective_share": 1.0,
        "noise_floor": 0.01,
        "output_noise_floor": 1e-4,
    }


# --- runs -------------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("tiny")
def test_a_real_run_from_data_to_page_and_on_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out, page = tmp_path / "d.jsonl", tmp_path / "docs" / "d.md"
    given: dict[str, Any] = {"sets": ("yacht",), "n_splits": 1, "quick": True, "console": QUIET}
    lines = sensitivity_runs.run(out, page, **given)
    wanted = cases(("yacht",), n_splits=1, quick=True)
    assert lines == read_lines(out)
    assert {key_of(line) for line in lines} == {case.key for case in wanted}
    assert len(lines) == len(wanted) == 4 * 5
    assert page.read_text() == to_markdown(lines)
    assert (page.parent / "images/defaults.png").read_bytes().startswith(b"\x89PNG")
    by_key = {key_of(line): line for line in lines}

    # A score is that of the estimator with the change, in the units of the targets.
    split = stand_in("yacht").split(0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = BALIRegressor(random_state=0, step_size=3.0, **TINY).fit(split.X_train, split.y_train)
    line = by_key["bali", "yacht", 0, "step_size", 3.0, True]
    target = torch.as_tensor(split.y_test)
    assert line["log_likelihood"] == pytest.approx(metrics.log_likelihood(model.pred_dist(split.X_test), target))
    assert line["changed"] == {"step_size": 3.0}

    # Others are scaled around what they chose for the split.
    chosen = by_key["map", "yacht", 0, None, 1.0, True]["chosen"]
    assert chosen in BASELINES["map"].grid
    for h in chosen:
        for factor in FACTORS:
            assert by_key["map", "yacht", 0, h, factor, True]["changed"] == {h: pytest.approx(factor * chosen[h])}

    # What is in the file is not run again; what is missing is, with the same result.
    write_lines(out, lines[:-1])
    ran: list[Case] = []

    def watched(case: Case, chosen: Any = None) -> Line:
        ran.append(case)
        return run_case(case, chosen)

    monkeypatch.setattr(sensitivity_runs, "run_case", watched)
    again = sensitivity_runs.run(out, page, **given)
    assert [case.key for case in ran] == [key_of(lines[-1])]
    assert again[-1]["log_likelihood"] == lines[-1]["log_likelihood"]


@pytest.mark.usefixtures("tiny")
def test_a_change_that_changes_nothing_costs_nothing() -> None:
    """Searching or not, a method gets the same random numbers, so differences are those of the change."""
    task = task_of(Case("map", "yacht", 0, quick=True))
    own = METHODS["map"].fit(task, {})
    assert own.chosen is not None
    same = METHODS["map"].fit(task._replace(chosen=own.chosen), {"learning_rate": own.chosen["learning_rate"]})
    torch.testing.assert_close(same.predictive.mean, own.predictive.mean, rtol=0, atol=0)


@pytest.mark.usefixtures("tiny")
def test_a_fit_that_fails_is_a_line_and_an_interrupted_one_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(task: StudyTask, changed: Values) -> StudyFit:
        raise NumericalError("not positive definite")

    def interrupted(task: StudyTask, changed: Values) -> StudyFit:
        warnings.warn("training was interrupted; the best posterior so far is kept", ConvergenceWarning, stacklevel=2)
        return pytest.fail("went on")

    whole, case = METHODS["bali"], Case("bali", "yacht", 0, "step_size", 3.0, quick=True)
    monkeypatch.setitem(METHODS, "bali", replace(whole, fit=failing))
    line = run_case(case)
    assert line["diverged"]
    assert "log_likelihood" not in line
    monkeypatch.setitem(METHODS, "bali", replace(whole, fit=interrupted))
    with pytest.raises(KeyboardInterrupt):
        run_case(case)
    monkeypatch.setitem(METHODS, "bali", whole)
    monkeypatch.setattr(table, "scores", lambda predictive, y: {"rmse": 1.0, "log_likelihood": float("nan")})
    line = run_case(case)
    assert line["diverged"]
    assert "log_likelihood" not in line


def test_nothing_is_scaled_around_a_search_that_diverged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ran: list[Case] = []

    def fake(case: Case, chosen: Any = None) -> Line:
        ran.append(case)
        return line_of(case.method, case.name, case.split, case.hyperparameter, case.factor, -1.0, diverged=True)

    monkeypatch.setattr(sensitivity_runs, "run_case", fake)
    sensitivity_runs.run(
        tmp_path / "d.jsonl", tmp_path / "d.md", sets=("yacht",), methods=("map", "before"), n_splits=1, console=QUIET
    )
    assert [case for case in ran if case.method == "map"] == [Case("map", "yacht", 0)]
    assert len([case for case in ran if case.method == "before"]) == 1 + 2 * len(METHODS["before"].hyperparameters)


# --- the page ---------------------------------------------------------------------------------------------------


def synthetic() -> list[Line]:
    """BALI on two sets of two splits: a third of α costs 0.1 and 0.02, three times it nothing; β × 3 diverges once."""
    lines = []
    for name, lost in (("yacht", 0.1), ("energy", 0.02)):
        for split, offset in ((0, -1.0), (1, -2.0)):
            lines += [
                line_of("bali", name, split, None, 1.0, offset),
                line_of("bali", name, split, "step_size", 1 / 3, offset - lost - (0.01 if split else -0.01), rmse=2.5),
                line_of("bali", name, split, "step_size", 3.0, offset),
                line_of("bali", name, split, "prior_variance", 1 / 3, offset - 0.03),
                line_of("bali", name, split, "prior_variance", 3.0, offset, diverged=name == "yacht" and split == 1),
            ]
    return lines


def test_costs_are_paired_by_split_and_every_set_counts_the_same() -> None:
    lines = [*synthetic(), line_of("bali", "yacht", 7, "step_size", 1 / 3, -99.0)]  # not paired with anything
    third, thrice, slower, faster, *rest = costs(lines, "bali")
    assert third.nats == pytest.approx({"yacht": 0.1, "energy": 0.02})
    assert third.mean is not None
    assert third.mean.mean == pytest.approx(0.06)
    assert third.rmse == pytest.approx({"yacht": 0.25, "energy": 0.25})
    assert (third.worst_set, third.is_within_bar) == ("yacht", False)
    assert (thrice.is_within_bar, slower.is_within_bar) == (True, True)
    assert (faster.diverged, faster.is_within_bar) == (1, False)
    assert all(cost.mean is None and cost.is_within_bar is None for cost in rest)


def test_page_says_what_the_lines_say() -> None:
    page = to_markdown(synthetic())
    assert "| step size α | 0.060 ± 0.040 | 0.000 ± 0.000 | +25.0 % | +0.0 % | yacht × ⅓: 0.100 | over the bar |" in page
    assert "| prior variance | 0.030 ± 0.000 | 0.000 ± 0.000, 1 diverged |" in page
    assert "| steps | – | – | – | – | – | – |" in page
    assert "| BALI, defaults | 2 of 4 | 0.022 | 0.060 (step size α × ⅓) |" in page
    assert "| MAP by Adam | – | – | – |" in page
    assert "Sets: yacht, energy; up to 2 splits of each." in " ".join(page.split())
    assert "| yacht | -1.500 ± 0.500 |" in page
    assert "| BALI, defaults | 20 | 30.0 | 10.0 |" in page
    assert "| yacht | 277 | 6 | 64 and 64 | 10 | 0 and 16 | 652 | 128 |" in page
    assert "quick run" not in page
    assert "quick run" in to_markdown([line | {"quick": True} for line in synthetic()])


def test_within_the_bar_needs_both_directions() -> None:
    lines = [line_of("map", "yacht", 0, None, 1.0, -1.0)]
    lines += [line_of("map", "yacht", 0, "learning_rate", factor, -1.0 - 0.9 * BAR) for factor in FACTORS]
    lines += [line_of("map", "yacht", 0, "prior_precision", 3.0, -1.0)]
    page = to_markdown(lines)
    assert "| learning rate | 0.045 | 0.045 | +0.0 % | +0.0 % | yacht × 3: 0.045 | within the bar |" in page
    assert "| prior precision | – | 0.000 | – | +0.0 % | yacht × 3: 0.000 | – |" in page


def test_page_says_which_runs_are_missing(tmp_path: Path) -> None:
    page = " ".join(to_markdown([]).split())
    for method in METHODS:
        assert f"Runs of it are missing: `bali-benchmarks defaults --method {method}` makes them." in page
    assert "images/defaults.png" not in page
    page = " ".join(to_markdown(synthetic()).split())
    assert [m for m in METHODS if f"--method {m}`" in page] == [m for m in METHODS if m != "bali"]
    assert "images/defaults.png" in page
    sensitivity_runs.write_page([], tmp_path / "d.md")
    assert not (tmp_path / "images").exists()


def test_words_about_the_rules_are_true_of_them() -> None:
    """Thresholds are written out in the text: on either side of each, the rules give something else."""
    few, many, small, wider, shared = rules.COLUMNS, rules.MANY, rules.SMALL, rules.WIDER_FROM, rules.SHARED_FROM
    widths, bins, n_members = defaults.hidden_layer_sizes, defaults.bins, defaults.members
    assert widths(wider - 1, few) == widths(small, few) != widths(wider, few) == widths(10**6, few)
    assert widths(small, many - 1) != widths(small, many) == widths(10**6, many)
    assert bins(wider - 1, few) == bins(small, few) != bins(wider, few)
    assert bins(small, many) == (0,)
    assert bins(10 * defaults.LEAST_BINS - 1, few) == (0,) != bins(10 * defaults.LEAST_BINS, few)
    assert bins(10**6, 40) == (0, defaults.MOST_BINS // 40)
    assert n_members(small) == n_members(wider - 1) != n_members(wider) == n_members(shared - 1) != n_members(shared)
    assert [defaults.groups(n) for n in (small, wider, shared)] == [n_members(small) // 2, n_members(wider) // 2, 1]
    assert defaults.course(small // 8).n_steps == defaults.course(2).n_steps == defaults.LEAST_STEPS
    assert defaults.course(8 * small).n_steps == 2 * defaults.course(small).n_steps
    assert defaults.course(wider - 1).batch_size == defaults.course(small).batch_size != defaults.course(wider).batch_size
    assert defaults.held_out_share(10**6) * 10**6 == defaults.MOST_HELD_OUT
    text = " ".join(" ".join(rules.rules()).split())
    assert "Two hidden layers of 64 units with the activation 'gelu'; 128 units from 5,000 rows on" in text
    assert "with 0 and 16 bins of each (0 and 32 from 5,000 rows on)" in text
    assert "For each way 10 independently started networks, 6 from 5,000 rows on and 4 from 10,000" in text
    assert "1,000 steps for 1,000 rows" in text


def test_page_in_the_repository_is_that_of_its_lines() -> None:
    assert (ROOT / "docs/defaults.md").read_text() == to_markdown(read_lines(ROOT / "results/defaults.jsonl"))


def test_command_writes_the_page_from_what_there_is_and_says_what_there_is_to_run(tmp_path: Path) -> None:
    out, page = tmp_path / "d.jsonl", tmp_path / "d.md"
    for line in synthetic():
        append_line(out, line)
    files = ["--out", str(out), "--page", str(page)]
    result = CliRunner().invoke(app, ["defaults", "--only-page", *files])
    assert result.exit_code == 0
    assert page.read_text() == to_markdown(synthetic())
    result = CliRunner().invoke(app, ["defaults", "--set", "boston", *files])
    assert result.exit_code == 2
    assert "boston" in result.output
