"""How much there is to read and to set: the options of the paper's algorithm, and the files that one of its steps enters."""

from __future__ import annotations

import inspect
import re
import sys
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import bali

SOURCE = Path(bali.__file__).parent
PAGE = Path(__file__).parents[2] / "docs" / "architecture.md"
MOST_LINES = 1_800


def test_layerwise_inference_has_few_options() -> None:
    assert len(inspect.signature(bali.LayerwiseInference).parameters) <= 14


def entered_by_a_step(likelihood: bali.likelihoods.Likelihood, y: Tensor, width: int) -> set[str]:
    """The library's files that have a function which a step of a perceptron calls, after its first one."""
    module = nn.Sequential(nn.Linear(3, width), nn.ReLU(), nn.Linear(width, 2))
    inference = bali.LayerwiseInference(module, likelihood, len(y))
    x = torch.randn(len(y), 3)
    inference.step(x, y)
    entered: set[str] = set()

    def note(frame: FrameType, event: str, _: Any) -> None:
        path = Path(frame.f_code.co_filename)
        if event == "call" and path.is_relative_to(SOURCE):
            entered.add(path.relative_to(SOURCE).as_posix())

    before = sys.getprofile()
    sys.setprofile(note)
    try:
        inference.step(x, y)
    finally:
        sys.setprofile(before)
    return entered


def lines_of(files: set[str]) -> int:
    return sum(len((SOURCE / file).read_text(encoding="utf-8").splitlines()) for file in files)


@pytest.mark.parametrize("width", [4, 200])
def test_a_step_of_a_perceptron_can_be_followed_in_an_evening(width: int) -> None:
    regression = entered_by_a_step(bali.likelihoods.Gaussian(), torch.randn(20, 2), width)
    classes = entered_by_a_step(bali.likelihoods.Categorical(), torch.randint(2, (20,)), width)
    assert lines_of(regression) <= MOST_LINES
    assert lines_of(classes) <= MOST_LINES
    assert "inference/layer_update.py" in regression & classes


def test_the_page_lists_what_there_is_to_read() -> None:
    section = PAGE.read_text(encoding="utf-8").partition("## Reading one step")[2].partition("\n## ")[0]
    rows = [row for row in section.splitlines() if row.startswith("| `")]
    listed = [file for row in rows for file in re.findall(r"`([\w/]+\.py)`", row.split(" | ")[0])]
    assert len(set(listed)) == len(listed)
    assert set(listed) == entered_by_a_step(bali.likelihoods.Gaussian(), torch.randn(20, 2), 4)
