"""Posteriors around trained networks: small runs from rows to page."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

from bali_benchmarks.networks import pretrained_runs
from bali_benchmarks.networks.network_fits import FitPlan
from bali_benchmarks.networks.network_tasks import TASKS, NetworkTask
from bali_benchmarks.networks.task_networks import perceptron
from bali_benchmarks.networks.task_rows import Rows
from support.networks import seeded

SHORT = FitPlan(most_scores=2)
OURS = ["network", "bali-last", "bali-all"]


def blobs(seed: int) -> Rows:
    y = torch.arange(400) % 2
    x = torch.randn(400, 3, generator=seeded(seed)) + 2.0 * y[:, None]
    outside = 8.0 * torch.randn(50, 3, generator=seeded(seed + 1))
    return Rows((x[:200], y[:200]), (x[200:300], y[200:300]), (x[300:], y[300:]), outside)


def lines_of_blobs(seed: int) -> Rows:
    rows = blobs(seed)
    train, validation, test = ((x, x[:, :1] + 0.1 * y[:, None]) for x, y in (rows.train, rows.validation, rows.test))
    return Rows(train, validation, test)


@pytest.fixture
def tasks(monkeypatch: pytest.MonkeyPatch) -> None:
    def make(d_out: int) -> nn.Module:
        return perceptron(3, [8], d_out)

    monkeypatch.setitem(TASKS, "mlp", NetworkTask("blobs", lambda: make(2), blobs, 0.1, is_image=True))
    regression = NetworkTask("lines", lambda: make(1), lines_of_blobs, 0.1, batch=64, is_regression=True)
    monkeypatch.setitem(TASKS, "energy", regression)


@pytest.mark.usefixtures("tasks")
def test_a_run_goes_from_rows_to_page_and_is_not_run_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out, page = tmp_path / "lines.jsonl", tmp_path / "page.md"
    lines = pretrained_runs.run(out, page, methods=OURS, plan=SHORT)
    assert [(line["task"], line["method"]) for line in lines] == [(t, m) for t in ("energy", "mlp") for m in OURS]
    of_network, _, of_all = (line for line in lines if line["task"] == "mlp")
    assert abs(of_network["accuracy"] - of_all["accuracy"]) < 0.1  # the weights stay
    assert "auroc_mutual_information" in of_all
    regression = [line for line in lines if line["task"] == "energy"]
    assert all(line["rmse"] == pytest.approx(regression[0]["rmse"], rel=1e-3) for line in regression)
    text = page.read_text(encoding="utf-8")
    assert "`bali.fit`, last layer" in text
    monkeypatch.setattr(pretrained_runs, "pretrained", None)  # not needed any more
    assert pretrained_runs.run(out, page, methods=OURS, plan=SHORT) == lines


@pytest.mark.usefixtures("tasks")
@pytest.mark.parametrize("method", ["laplace-last", "laplace-all"])
@pytest.mark.parametrize("task", ["energy", "mlp"])
def test_laplace_torch(task: str, method: str) -> None:
    pytest.importorskip("laplace", reason="pip install 'bali-benchmarks[peers]' has it", exc_type=ImportError)
    network, rows = pretrained_runs.pretrained(TASKS[task], 0, SHORT)
    line = pretrained_runs.measure(TASKS[task], method, 0, network, rows)
    assert torch.tensor(line["nll"]).isfinite()
