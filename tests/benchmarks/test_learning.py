"""`bali-benchmarks learning`: what runs, what is run again, what the page says."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from bali_benchmarks.learning import continual, labels, learning_runs
from bali_benchmarks.learning.learning_page import bars, to_markdown
from bali_benchmarks.lines import read_lines, write_lines
from bali_benchmarks.networks.task_rows import Rows
from bali_benchmarks.performance.measurement import Line
from support.networks import seeded

pytestmark = pytest.mark.filterwarnings("ignore:.*before a temperature of")  # right: two epochs are few
ROOT = Path(__file__).parents[2]


def made_digits(name: str, shape: tuple[int, ...], seed: int, n: int | None = None) -> Rows:
    """Ten kinds of rows that are easy to tell apart."""
    y = torch.arange(160) % 10
    centres = torch.randn(10, *shape, generator=seeded(1))
    x = centres[y] + 0.3 * torch.randn(160, *shape, generator=seeded(2))
    return Rows((x[:120], y[:120]), (x[120:140], y[120:140]), (x[140:], y[140:]))


def test_tasks_go_on_after_an_interruption(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(continual, "image_rows", made_digits)
    out, page = tmp_path / "learning.jsonl", tmp_path / "learning.md"
    learning_runs.run(out, page, "permuted", seeds=1, n_tasks=1, size=learning_runs.QUICK)
    lines = [line | {"is_last": False} for line in read_lines(out)]
    write_lines(out, lines)
    found = learning_runs.run(out, page, "permuted", seeds=1, n_tasks=2, size=learning_runs.QUICK)
    assert [line["tasks"] for line in found] == [1, 2]
    assert len(found[-1]["accuracies"]) == 2
    assert "Permuted MNIST" in page.read_text(encoding="utf-8")
    (tmp_path / "learning-state" / "permuted-0.bali").unlink()
    write_lines(out, lines)
    again = learning_runs.run(out, page, "permuted", seeds=1, n_tasks=1, size=learning_runs.QUICK)
    assert [line["tasks"] for line in again] == [1]  # from its start, as the posterior is not there


def test_split_tasks_have_an_output_layer_each(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(continual, "image_rows", made_digits)
    found = learning_runs.run(tmp_path / "l.jsonl", tmp_path / "l.md", "split", seeds=1, size=learning_runs.QUICK)
    assert [len(line["accuracies"]) for line in found] == [1, 2, 3, 4, 5]
    assert found[-1]["accuracy"] > 0.5


def test_labels_are_bought_in_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(labels, "image_rows", lambda *arguments: made_digits("mnist", (1, 28, 28), 0))
    for chooser in ("query", "random"):
        found = list(labels.labels("mnist", chooser, 0, learning_runs.QUICK))
        assert [line["labels"] for line in found] == [20, 30]


def test_an_optimisation_by_a_network(tmp_path: Path) -> None:
    pytest.importorskip("botorch", reason="BoTorch is an extra: pip install 'bali-torch[botorch]'")
    found = learning_runs.run(
        tmp_path / "l.jsonl", tmp_path / "l.md", "optimisation", seeds=1, what=["branin"], size=learning_runs.QUICK
    )
    regrets = {method: [line["regret"] for line in found if line["method"] == method] for method in ("network", "process")}
    for values in regrets.values():
        assert len(values) == 3
        assert values == sorted(values, reverse=True)
        assert min(values) >= 0
    assert regrets["network"][0] == regrets["process"][0]


def test_runs_can_be_thrown_away_and_run_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(learning_runs, "condition", lambda seed: {"milliseconds": 2.0})
    out, page = tmp_path / "learning.jsonl", tmp_path / "learning.md"
    former = [line(study="condition", milliseconds=1.0, is_last=True, seed=seed) for seed in (0, 1)]
    write_lines(out, former)
    assert learning_runs.run(out, page, "condition", seeds=1) == former
    found = learning_runs.run(out, page, "condition", seeds=1, again=True)
    assert [row["milliseconds"] for row in found] == [1.0, 2.0]  # seed 1 was not asked for
    assert found == read_lines(out)


def test_unknown_studies_are_told() -> None:
    with pytest.raises(ValueError, match="there is no study 'all'"):
        learning_runs.jobs("all", 1)
    with pytest.raises(ValueError, match="labels has no 'iris'"):
        learning_runs.jobs("labels", 1, ["iris"])
    with pytest.raises(ValueError, match="optimisation has no method 'query'; it has network, process"):
        learning_runs.jobs("optimisation", 1, method="query")


def line(**values: object) -> Line:
    return {"seed": 0, "what": "", "method": "", **values}


def test_bars_are_met_or_missed() -> None:
    lines = [
        line(study="permuted", tasks=10, accuracy=0.95, accuracies=[0.93, 0.97], steps=100, seconds=1.0),
        line(study="labels", what="mnist", method="query", labels=60, score=0.91, is_last=False),
        line(study="labels", what="mnist", method="query", labels=300, score=0.94, is_last=True),
        line(study="labels", what="airfoil", method="query", labels=200, score=0.4),
        line(study="labels", what="airfoil", method="random", labels=200, score=0.5),
        line(study="optimisation", what="branin", method="network", evaluations=30, regret=0.2, seconds=2.0),
        line(study="optimisation", what="branin", method="process", evaluations=30, regret=0.1, seconds=1.0),
        line(study="condition", milliseconds=9.0, processor_milliseconds=7.0),
    ]
    found = {what: (how, verdict) for what, how, verdict in bars(lines)}
    assert list(found.values()) == [
        ("95.00% (1 seed)", "met"),
        ("not run yet", ""),
        ("not run yet", ""),
        ("60 (1 seed)", "met"),
        ("not reached by 1 of 1 seed", "missed"),
        ("0.80 (1 seed)", "met"),
        ("not run yet", ""),
        ("0.2, the process 0.1 (1 seed)", "missed"),
        ("not run yet", ""),
        ("not run yet", ""),
        ("9.0 ms by the clock (1 seed)", "met"),
    ]
    assert to_markdown(lines).startswith("# Learning that goes on")


def test_the_page_is_that_of_the_lines() -> None:
    lines = read_lines(ROOT / "results" / "learning.jsonl")
    assert (ROOT / "docs" / "learning.md").read_text(encoding="utf-8") == to_markdown(lines)
