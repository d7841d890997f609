"""Every script in examples/ runs, in sizes that take a second each, and what it compares has learnt something."""

from __future__ import annotations

import importlib.util
import math
from pathlib import Path
from types import ModuleType

import pytest
import torch

from bali_benchmarks.datasets import sentences

EXAMPLES = Path(__file__).parents[2] / "examples"


def script(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    with torch.random.fork_rng():
        spec.loader.exec_module(module)
    return module


def test_every_example_is_tested() -> None:
    here = {"char_lstm", "char_transformer", "resnet", "vision_transformer"}
    here |= {"permuted_mnist", "mnist_labels", "two_objectives", "sensor_stream"}
    elsewhere = {"distributed"}  # in test_distributed.py
    assert {path.stem for path in EXAMPLES.glob("*.py")} == here | elsewhere


@pytest.mark.filterwarnings("ignore:.*before a temperature of")  # right: two epochs are too few for good probabilities
@pytest.mark.parametrize("name", ["char_lstm", "char_transformer"])
def test_characters(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    with torch.random.fork_rng():
        found = script(name).main(epochs=2, width=16, length=3000, context=8)
    printed = capsys.readouterr().out
    assert list(found) == ["BALI", "Adam, rate 0.003", "Adam, rate 0.01", "Adam, rate 0.02"]
    assert f"NLL {found['BALI']:.4f}" in printed
    assert max(found.values()) < math.log(len(set(sentences(3000))))  # better than no knowledge at all


@pytest.mark.parametrize(("name", "width"), [("vision_transformer", 8), ("resnet", 4)])
def test_images(name: str, width: int, capsys: pytest.CaptureFixture[str]) -> None:
    with torch.random.fork_rng():
        found = script(name).main(epochs=2, data="digits", width=width)
    nll, accuracy = found["BALI"]
    assert accuracy > 0.2  # of ten classes
    assert f"NLL {nll:.4f}  accuracy {accuracy:.4f}" in capsys.readouterr().out


def test_tasks_one_after_the_other() -> None:
    found = script("permuted_mnist").main(tasks=2, data="digits", epochs=8)
    kept, lost = found["posterior as prior"], found["from the last weights"]
    assert min(kept) > 0.6
    assert kept[0] > lost[0]


@pytest.mark.filterwarnings("ignore:.*before a temperature of")  # right: eight epochs are few
def test_labels_bought() -> None:
    found = script("mnist_labels").main(rounds=2, data="digits", epochs=8)
    assert found["asked for"][0] == found["at random"][0]
    assert min(found["asked for"] + found["at random"]) > 0.2  # of ten classes


def test_two_objectives(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("botorch", reason="BoTorch is an extra: pip install 'bali-torch[botorch]'")
    found = script("two_objectives").main(queries=2, epochs=10)
    assert found["queries"] > 0
    assert "14 runs: dominated volume" in capsys.readouterr().out


def test_a_sensor_that_drifts() -> None:
    found = script("sensor_stream").main(days=45, epochs=30)
    assert found["drifts"]
    assert min(found["drifts"]) > 30  # not before it ages


def test_sentences_are_the_same_for_a_seed_and_hold_together() -> None:
    text = sentences(5000, seed=3)
    assert text == sentences(6000, seed=3)[:5000]
    assert text != sentences(5000, seed=4)
    assert len(text) == 5000
    for question in [part for part in text.split(". ") if part.startswith("where is ") and part.count(" is ") == 2]:
        asked, answered = question.removeprefix("where is ").split("? ")
        assert answered.startswith(f"{asked} is in the ")
    with pytest.raises(ValueError, match="length must be at least 1"):
        sentences(0)
