"""Networks by `bali.fit` and by Adam: small runs from rows to page, what is resumed, what the bars say."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from bali.training.rules import Rules
from bali_benchmarks.commands.main import app
from bali_benchmarks.lines import read_lines
from bali_benchmarks.networks import network_runs, networks_page, scaled_rules, scaled_rules_page
from bali_benchmarks.networks.adam_search import AdamSettings, adam_run, outputs, validation_score
from bali_benchmarks.networks.network_fits import FitPlan
from bali_benchmarks.networks.network_tasks import TASKS, NetworkTask
from bali_benchmarks.networks.networks_bars import IMAGES, TEN, bars
from bali_benchmarks.networks.networks_summary import difference, of
from bali_benchmarks.networks.task_networks import perceptron
from bali_benchmarks.networks.task_rows import CONTEXT, Rows, text_rows
from bali_benchmarks.performance.measurement import Line
from support.networks import seeded

REPOSITORY = Path(__file__).parents[2]
SHORT = FitPlan(epochs=3, most_scores=1)


def blobs(seed: int) -> Rows:
    """Two classes apart, and rows far from both."""
    generator = seeded(seed)
    y = torch.arange(400) % 2
    x = torch.randn(400, 3, generator=generator) + 2.0 * y[:, None]
    outside = 8.0 * torch.randn(50, 3, generator=generator)
    return Rows((x[:200], y[:200]), (x[200:300], y[200:300]), (x[300:], y[300:]), outside)


def lines_of_blobs(seed: int) -> Rows:
    """A regression."""
    x = torch.randn(400, 3, generator=seeded(seed))
    y = x.sum(1, keepdim=True) + 0.1 * torch.randn(400, 1, generator=seeded(seed + 1))
    return Rows((x[:200], y[:200]), (x[200:300], y[200:300]), (x[300:], y[300:]))


CLASSES = NetworkTask("blobs", partial(perceptron, 3, [8], 2), blobs, 0.1, batch=32, is_image=True)
REGRESSION = NetworkTask("a plane", partial(perceptron, 3, [8], 1), lines_of_blobs, 0.1, batch=32, is_regression=True)


# --- the tasks --------------------------------------------------------------------------------------------------


def test_there_are_ten_and_some_more() -> None:
    assert len(TEN) == 10
    assert len(TASKS) == 16
    assert set(IMAGES) == {"mlp", "gru", "transformer", "cnn", "cnn-norms", "lenet-mnist", "lenet-fashion"}


def test_networks_take_their_rows() -> None:
    for name in IMAGES:
        task = TASKS[name]
        shape = task.rows.args[1]  # type: ignore[attr-defined]
        assert task.network(0)(torch.zeros(2, *shape)).shape == (2, 10), name


def test_a_window_is_followed_by_its_text() -> None:
    rows = text_rows(0)
    x, y = rows.train
    assert x.shape == y.shape == (len(x), CONTEXT)
    assert torch.equal(x[:, 1:], y[:, :-1])
    assert torch.equal(x[1:, 0], y[:-1, -1])
    assert TASKS["characters"].network(0)(x[:2]).shape[:2] == (2, CONTEXT)


def test_a_seed_gives_the_same_network() -> None:
    one, again, other = CLASSES.network(1), CLASSES.network(1), CLASSES.network(2)
    assert torch.equal(one[0].weight, again[0].weight)  # type: ignore[index]
    assert not torch.equal(one[0].weight, other[0].weight)  # type: ignore[index]


# --- trainings --------------------------------------------------------------------------------------------------


def test_adam_keeps_its_best_point() -> None:
    rows = blobs(0)
    settings = AdamSettings(batch=32, is_regression=False, seed=0, limit=4)
    run = adam_run(CLASSES.network(0), rows.train, rows.validation, 1e-2, settings)
    assert run.steps == 200
    assert run.best_step % 50 == 0
    assert run.score == pytest.approx(validation_score(run.network, rows.validation, is_regression=False))
    assert (outputs(run.network, rows.test[0]).argmax(-1) == rows.test[1]).float().mean() > 0.85


def test_adam_stops_without_a_gain() -> None:
    rows = blobs(0)
    settings = AdamSettings(batch=32, is_regression=False, seed=0)
    run = adam_run(CLASSES.network(0), rows.train, rows.validation, 0.1, settings)
    assert run.steps == run.best_step + 50 * settings.patience


@pytest.mark.parametrize("method", network_runs.METHODS)
def test_classes_are_scored(method: str) -> None:
    line = network_runs.measure(CLASSES, method, 0, SHORT, rate=1e-2)
    assert 0.0 < line["nll"] < 1.0
    assert {"accuracy", "ece", "auroc_entropy", "validation_nll", "seconds", "steps"} <= line.keys()
    assert ("auroc_mutual_information" in line) == (method != "adam")
    json.dumps(line)


@pytest.mark.parametrize("method", network_runs.METHODS)
def test_regressions_are_scored(method: str) -> None:
    line = network_runs.measure(REGRESSION, method, 0, SHORT, rate=1e-2)
    assert line["rmse"] < 1.5
    assert "ece" not in line


def test_what_is_finished_is_not_run_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(TASKS, "energy", REGRESSION)
    out, page = tmp_path / "networks.jsonl", tmp_path / "networks.md"
    first = network_runs.run(out, page, tasks=["energy"], seeds=1, plan=SHORT)
    again = network_runs.run(out, page, tasks=["energy"], methods=["bali", "ensemble"], seeds=1, plan=SHORT)
    assert [line["method"] for line in first] == ["bali", "adam"]
    assert again[:2] == first
    assert [line["method"] for line in again[2:]] == ["ensemble"]
    assert page.read_text() == networks_page.to_markdown(read_lines(out))


def test_an_ensemble_asks_for_the_rate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(TASKS, "energy", REGRESSION)
    with pytest.raises(ValueError, match="run --task energy --method adam first"):
        network_runs.run(tmp_path / "o", tmp_path / "p", tasks=["energy"], methods=["ensemble"], plan=SHORT)


def test_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(TASKS, "telescope", CLASSES)
    arguments = ["networks", "--quick", "--task", "telescope", "--seeds", "1"]
    done = CliRunner().invoke(app, arguments)
    assert done.exit_code == 0, done.output
    assert "| `telescope` | blobs | 1 |" in (tmp_path / "results/quick/networks.md").read_text()
    (tmp_path / "results/quick/networks.md").unlink()
    assert CliRunner().invoke(app, ["networks", "--quick", "--only-page"]).exit_code == 0
    assert (tmp_path / "results/quick/networks.md").exists()
    assert CliRunner().invoke(app, ["networks", "--task", "none"]).exit_code == 2


# --- rules that are off -----------------------------------------------------------------------------------------


def test_a_rule_is_scaled_and_nothing_else() -> None:
    usual, scaled = vars(Rules()), vars(scaled_rules.scaled_rules("damping", 3.0))
    assert scaled == usual | {"damping": 3.0 * usual["damping"]}
    assert scaled_rules.scaled_rules(*scaled_rules.AS_IT_IS) == Rules()


@pytest.mark.parametrize("task", [CLASSES, REGRESSION])
def test_the_width_is_scaled_without_another_training(task: NetworkTask) -> None:
    plain, *wider = scaled_rules.measure(task, scaled_rules.ScaledJob("energy", *scaled_rules.AS_IT_IS, 0), SHORT)
    assert [(line["rule"], line["factor"]) for line in wider] == [("width", 3.0), ("width", 0.3333)]
    assert all(line["steps"] == plain["steps"] for line in wider)
    assert len({line["nll"] for line in (plain, *wider)}) == 3
    (slower,) = scaled_rules.measure(task, scaled_rules.ScaledJob("energy", "step_size", 1 / 3, 0), SHORT)
    assert slower["nll"] != plain["nll"]


def test_scaled_rules_are_resumed_and_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(TASKS, "energy", REGRESSION)
    arguments = ["networks", "--quick", "--scaled", "--task", "energy", "--seeds", "1"]
    assert CliRunner().invoke(app, arguments).exit_code == 0
    written = (tmp_path / "results/quick/networks-scaled.jsonl").read_text()
    assert CliRunner().invoke(app, arguments).exit_code == 0
    assert (tmp_path / "results/quick/networks-scaled.jsonl").read_text() == written
    assert len(written.splitlines()) == 1 + 2 * len(scaled_rules.NAMES)
    assert "| damping δ ÷ 3 |" in (tmp_path / "results/quick/networks.md").read_text()


def test_costs_are_means_over_tasks() -> None:
    def line(task: str, rule: str, factor: float, nll: float) -> Line:
        return {"task": task, "rule": rule, "factor": factor, "seed": 0, "nll": nll}

    lines = [line("energy", "none", 1.0, 1.0), line("mlp", "none", 1.0, 0.1)]
    lines += [line("energy", "damping", 3.0, 1.04), line("mlp", "damping", 3.0, 0.09), line("mlp", "rate", 0.3333, 0.14)]
    assert scaled_rules_page.bar(lines[:4])[1:] == ("+0.015 at most (damping δ × 3), on energy, mlp", "open")
    assert scaled_rules_page.bar(lines)[1:] == ("+0.040 at most (rate of A and S ÷ 3), on energy, mlp", "open")
    assert "| rate of A and S ÷ 3 | – | +0.040 | +0.040 |" in scaled_rules_page.section(lines)
    assert scaled_rules_page.bar([])[2] == "not measured"
    scaled = [(rule, round(factor, 4)) for rule in scaled_rules.NAMES for factor in scaled_rules.FACTORS]
    every = [line(task, *which, 1.0) for task in scaled_rules.CHEAP for which in [scaled_rules.AS_IT_IS, *scaled]]
    assert scaled_rules_page.bar(every)[2] == "met"
    assert scaled_rules_page.bar([*every[:-1], every[-1] | {"nll": 1.2}])[2] == "missed"


# --- the page ---------------------------------------------------------------------------------------------------


def given(task: str, method: str, seed: int, nll: float, **more: float) -> Line:
    return {"task": task, "method": method, "seed": seed, "nll": nll, "seconds": 1.0, "steps": 9, "threads": 1} | more


def test_differences_are_between_the_same_seeds() -> None:
    lines = [given("energy", "bali", s, nll) for s, nll in enumerate([1.0, 2.0, 9.0])]
    lines += [given("energy", "adam", s, nll) for s, nll in enumerate([1.5, 2.3])]
    change = difference(lines, "energy", "bali", "adam", "nll")
    assert change is not None
    assert change.mean == pytest.approx(-0.4)
    assert change.error == pytest.approx(0.1)
    assert change.n == 2
    assert of(lines, "energy", "ensemble", "nll") is None
    assert "| -0.4000 ± 0.1000 | `bali.fit` |" in networks_page.to_markdown(lines)


def test_bars_are_met_missed_or_open() -> None:
    lines = [given(task, "adam", seed, 0.5) for task in TEN for seed in range(2)]
    lines += [given(task, "bali", seed, 0.4 + 0.01 * seed) for task in TEN[:-1] for seed in range(2)]
    no_worse, better = bars(lines)[:2]
    assert no_worse[1:] == ("9 of 9 measured", "open")
    assert better[1:] == ("9 of 9 measured", "met")
    no_worse = bars([*lines, given(TEN[-1], "bali", 0, 0.6)])[0]
    assert no_worse[1:] == (f"9 of 10 measured; not {TEN[-1]}", "missed")


def test_bounds_of_single_networks() -> None:
    lines = [given("lenet-mnist", "bali", 0, 0.03, accuracy=0.994)]
    by_name = {what: verdict for what, _, verdict in bars(lines)}
    assert by_name["MNIST, all rows, LeNet-5: accuracy ≥ 0.993"] == "met"
    assert by_name["MNIST, all rows, LeNet-5: NLL ≤ 0.022"] == "missed"
    assert by_name["Fashion-MNIST, all rows, LeNet-5: NLL ≤ 0.24"] == "not measured"


def test_the_page_is_that_of_the_results() -> None:
    lines, scaled = (read_lines(REPOSITORY / "results" / f"{name}.jsonl") for name in ("networks", "networks-scaled"))
    assert (REPOSITORY / "docs" / "networks.md").read_text(encoding="utf-8") == networks_page.to_markdown(lines, scaled)
