"""LeNet-5 on images: the network, a small run from data to page, what is resumed and what is left out."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn import functional
from typer.testing import CliRunner

from bali_benchmarks.commands.main import app
from bali_benchmarks.datasets import DataError, Dataset
from bali_benchmarks.lenet_study import lenet as networks
from bali_benchmarks.lenet_study import lenet_page, lenet_runs
from bali_benchmarks.lines import read_lines
from bali_benchmarks.performance.peer_trainings import MissingPeerError
from bali_benchmarks.performance.trainings import AdamTraining
from support.networks import seeded

SMALL = lenet_runs.LenetPlan(n_train=600, n_test=150, steps=50, batch=100, samples=4, rounds=2)
SIZE = 16
MIXTURE = networks.BALI_MIXTURE


def digits(name: str) -> Dataset:
    """scikit-learn's digits, each pixel as four; the other set has them with light and dark exchanged."""
    x, y = load_digits(return_X_y=True)
    x = np.kron(x.reshape(-1, 8, 8), np.ones((1, 2, 2))).reshape(len(x), -1)
    return Dataset(
        name=name,
        task="classification",
        X=x if name == "mnist" else 16.0 - x,
        y=y.astype(np.int64),
        feature_names=tuple(f"p{i}" for i in range(x.shape[1])),
        target_name="digit",
        class_names=tuple("0123456789"),
        n_splits=1,
        test_share=0.2,
    )


# --- the network ------------------------------------------------------------------------------------------------


def test_the_network_has_the_sizes_of_the_paper() -> None:
    """61,706 weights: 156 + 2,416 + 48,120 + 10,164 + 850, with all maps of S2 connected to all of C3."""
    module = networks.lenet()
    assert sum(p.numel() for p in module.parameters()) == 156 + 2416 + 48120 + 10164 + 850
    assert module(torch.zeros(2, 1, 28, 28)).shape == (2, 10)


def test_pools_before_rectifiers_are_the_same_function() -> None:
    module, x = networks.lenet(), torch.randn(3, 1, 28, 28, generator=seeded(1))
    convolutions = [m for m in module if isinstance(m, nn.Conv2d)]
    z = x
    for convolution in convolutions:
        z = functional.max_pool2d(functional.relu(convolution(z)), 2)
    torch.testing.assert_close(module[6:](z), module(x))


def test_networks_start_from_their_seed_whatever_is_dropped() -> None:
    one, dropping, other = networks.lenet(SIZE, 1), networks.lenet(SIZE, 1, dropout=0.2), networks.lenet(SIZE, 2)
    assert all(torch.equal(a, b) for a, b in zip(one.parameters(), dropping.parameters(), strict=True))
    assert not torch.equal(next(one.parameters()), next(other.parameters()))
    assert sum(isinstance(m, nn.Dropout) for m in dropping) == 3
    assert isinstance(dropping[-1], nn.Linear)


def test_small_images_are_refused() -> None:
    with pytest.raises(ValueError, match="at least 12 × 12 pixels, got 8 × 8"):
        networks.lenet(8)


def test_learning_rates_fall_to_zero_in_all_networks() -> None:
    ensemble = networks.METHODS["ensemble of 5"].start(networks.LenetTask("mnist", SIZE, 100), 0)
    assert isinstance(ensemble, networks.Mixture)
    for share, expected in {0.0: 1.0, 0.5: 0.5, 1.0: 0.0}.items():
        networks.set_rate(ensemble, share)
        for member in ensemble.members:
            assert isinstance(member, AdamTraining)
            assert member.optimizer.param_groups[0]["lr"] == pytest.approx(expected * networks.LEARNING_RATE)


def test_a_mixture_predicts_with_all_its_networks_and_about_as_many_draws_as_asked_for() -> None:
    x, y = torch.randn(20, 1, SIZE, SIZE, generator=seeded(3)), torch.arange(20) % 10
    task = networks.LenetTask("mnist", SIZE, 20)
    mixture = networks.METHODS[MIXTURE].start(task, 1)
    assert isinstance(mixture, networks.Mixture)
    alone = networks.METHODS["BALI"].start(task, networks.MEMBERS + 2)  # its third network
    for training in (mixture, alone):
        training.step(x, y)
    drawn = mixture.predict(x, 5).component_probabilities  # two of each network
    assert drawn.shape == (2 * networks.MEMBERS, 20, 10)
    torch.testing.assert_close(drawn[4:6], alone.predict(x, 2).component_probabilities)


# --- a run ------------------------------------------------------------------------------------------------------


def test_images_are_standardised_by_the_training_part_and_others_alike() -> None:
    images, outside = lenet_runs.square_images("mnist", lenet_runs.LenetPlan(), digits)
    assert images.x_train.shape[1:] == outside.shape[1:] == (1, SIZE, SIZE)
    assert float(images.x_train.mean()) == pytest.approx(0.0, abs=1e-4)
    assert float(images.x_train.std()) == pytest.approx(1.0, abs=1e-3)
    assert float(outside.mean()) > 0.5  # light where the digits are dark


def test_every_method_learns_and_a_second_run_has_nothing_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out, written, notes = tmp_path / "lenet.jsonl", tmp_path / "lenet.md", list[str]()
    every: dict[str, Any] = {"sets": ["mnist"], "plan": SMALL, "threads": 1, "load": digits, "note": notes.append}
    monkeypatch.setattr(lenet_runs, "step_times", lambda batch, rounds: STEP)
    lines = lenet_runs.run(out, written, **every)
    trained = {line["method"]: line for line in lines if line["kind"] == "training"}
    assert set(trained) == set(networks.METHODS) - ({"Laplace KFAC"} if notes else set())
    for method, line in trained.items():
        assert line["accuracy"] > 0.6, method
        assert 0.0 < line["nll"] < 2.0
        assert (line["steps"], line["seed"]) == (50, 0)
        assert line["n_train"] == (540 if method == MIXTURE else 600)  # a tenth is held out for the temperature
        assert (line["temperature"] != 1.0) == (method == MIXTURE)
        assert line["seconds"] > 0
        assert line["settings"] == networks.METHODS[method].settings
    assert trained["Adam"]["auroc_mutual_information"] == pytest.approx(0.5)  # a single network has none
    before = out.read_text()
    monkeypatch.setattr(lenet_runs, "measure", lambda *args: pytest.fail("was run already"))
    assert lenet_runs.run(out, written, **every) == [json.loads(line) for line in before.splitlines()]
    assert out.read_text() == before
    assert "| BALI | 600 | 50 | 1 |" in written.read_text()


def test_an_interrupted_run_goes_on_with_what_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out, done = tmp_path / "lenet.jsonl", list[tuple[str, int]]()

    def measure(
        images: Any, outside: Any, method: str, seed: int, plan: lenet_runs.LenetPlan, on_step: Any
    ) -> dict[str, Any]:
        if len(done) == 3:
            raise KeyboardInterrupt
        done.append((method, seed))
        return line_of(method, seed)

    monkeypatch.setattr(lenet_runs, "measure", measure)
    options: dict[str, Any] = {
        "sets": ["mnist"],
        "methods": ["Adam", "MC dropout"],
        "seeds": 3,
        "plan": SMALL,
        "load": digits,
    }
    with pytest.raises(KeyboardInterrupt):
        lenet_runs.run(out, tmp_path / "lenet.md", **options)
    assert done == [("Adam", 0), ("MC dropout", 0), ("Adam", 1)]
    finished = list(done)
    done.clear()
    lenet_runs.run(out, tmp_path / "lenet.md", **options)
    assert done == [("MC dropout", 1), ("Adam", 2), ("MC dropout", 2)]
    done.clear()
    lenet_runs.run(out, tmp_path / "lenet.md", **(options | {"methods": ["Adam"], "plan": replace(SMALL, steps=7)}))
    assert done == [("Adam", 0), ("Adam", 1), ("Adam", 2)]  # other steps are other trainings
    assert len(read_lines(out)) == len(finished) + 6


def test_laplace_is_left_out_with_a_note_where_it_is_not_installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(module: str) -> None:
        raise MissingPeerError(f"the comparison needs {module!r}: pip install 'bali-benchmarks[peers]'")

    monkeypatch.setattr(lenet_runs, "peer", missing)
    monkeypatch.setattr(lenet_runs, "measure", lambda images, outside, method, seed, plan, on_step: line_of(method, seed))
    notes = list[str]()
    options: dict[str, Any] = {"sets": ["mnist"], "methods": ["Adam", "Laplace KFAC"], "plan": SMALL, "load": digits}
    lines = lenet_runs.run(tmp_path / "l.jsonl", tmp_path / "l.md", note=notes.append, **options)
    assert [line["method"] for line in lines] == ["Adam"]
    assert len(notes) == 1
    assert "Laplace KFAC is left out" in notes[0]
    assert "bali-benchmarks[peers]" in notes[0]


def test_a_step_is_timed_beside_adams() -> None:
    line = lenet_runs.step_times(8, 3, SIZE)
    assert line["ratio"] == pytest.approx(line["bali_ms"] / line["adam_ms"])
    assert 0.0 < line["lower"] <= line["upper"]


# --- the page ---------------------------------------------------------------------------------------------------

STEP = {"bali_ms": 60.0, "adam_ms": 40.0, "ratio": 1.5, "lower": 1.4, "upper": 1.6, "threads": 1}


def line_of(method: str, seed: int, **figures: Any) -> dict[str, Any]:
    """What a training might have left."""
    scores = {"accuracy": 0.993, "nll": 0.02, "ece": 0.003, "auroc_entropy": 0.99, "auroc_mutual_information": 0.995}
    rest = {"seconds": 10.0, "predict_seconds": 1.0, "n_train": 600, "n_test": 150, "n_outside": 150, "samples": 4}
    settings = networks.METHODS[method].settings
    return scores | rest | {"threads": 1, "settings": settings} | figures


def synthetic_lines() -> list[dict[str, Any]]:
    key = {"kind": "training", "steps": 50, "batch": 512}
    return [
        {"kind": "step", "batch": 512, "rounds": 20} | STEP,
        key | {"set": "mnist", "method": "BALI", "seed": 0} | line_of("BALI", 0),
        key | {"set": "mnist", "method": "BALI", "seed": 1} | line_of("BALI", 1, accuracy=0.991, ece=0.006),
        key | {"set": "mnist", "method": "BALI", "seed": 0, "steps": 9} | line_of("BALI", 0, accuracy=0.5),
        key | {"set": "fashion_mnist", "method": "BALI", "seed": 0} | line_of("BALI", 0, accuracy=0.909, ece=0.01),
        key | {"set": "fashion_mnist", "method": MIXTURE, "seed": 0} | line_of(MIXTURE, 0, accuracy=0.912, ece=0.013),
        key | {"set": "fashion_mnist", "method": "Adam", "seed": 0} | line_of("Adam", 0),
    ]


def test_goals_are_those_of_the_longest_trainings_of_bali() -> None:
    found = {goal.what: goal.cells[1:] for goal in lenet_page.goals(synthetic_lines())}
    assert found == {
        "MNIST: accuracy": ("≥ 0.9920", "0.9920, met", "not measured"),
        "MNIST: ECE": ("≤ 0.0040", "0.0045, missed", "not measured"),
        "MNIST: AUROC": ("≥ 0.9920", "0.9900, missed", "not measured"),
        "Fashion-MNIST: accuracy": ("≥ 0.9100", "0.9090, missed", "0.9120, met"),
        "Fashion-MNIST: ECE": ("≤ 0.0100", "0.0100, met", "0.0130, missed"),
        "a step at batch 512, of Adam's": ("≤ 2.00", "1.50, met", "1.50, met"),
    }


def test_what_was_not_measured_is_said_to_be_so() -> None:
    assert {cell for goal in lenet_page.goals([]) for cell in goal.cells[2:]} == {"not measured"}
    assert lenet_page.to_markdown([]).count("not measured") == 12


def test_the_page_has_a_row_for_each_method_with_the_spread_over_seeds() -> None:
    text = lenet_page.to_markdown(synthetic_lines())
    assert "| BALI | 600 | 50 | 2 | 0.9920 ± 0.0014 |" in text
    assert "| Adam | 600 | 50 | 1 | 0.9930 |" in text
    assert "| 512 | 60.0 | 40.0 | 1.50 | 1.40 to 1.60 | 20 | 1 |" in text
    assert text.index("## MNIST") < text.index("## Fashion-MNIST") < text.index("## A step")


# --- the command ------------------------------------------------------------------------------------------------


def test_the_command_knows_its_sets_and_methods() -> None:
    for option, message in {"--set": "no set 'cifar'", "--method": "no method 'cifar'"}.items():
        result = CliRunner().invoke(app, ["lenet", option, "cifar"], env={"COLUMNS": "200"})
        assert result.exit_code == 2
        assert message in result.output


def test_without_data_the_command_says_what_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(*args: Any) -> None:
        raise DataError("mnist is not on this machine")

    monkeypatch.setattr(lenet_runs, "square_images", absent)
    files = ["--out", str(tmp_path / "l.jsonl"), "--page", str(tmp_path / "l.md")]
    result = CliRunner().invoke(app, ["lenet", "--method", "Adam", "--quick", *files])
    assert result.exit_code == 1
    assert "error: mnist is not on this machine" in result.output
