"""How much there is to read and to set: the options of the paper's algorithm, and the files that one of its steps enters."""

from __future__ import annotations

import inspect
import sys
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from torch import nn

import bali

ROOT = Path(bali.__file__).parent
#: 1,800 lines are wanted; this is what there is, and it must not grow.
MOST_LINES = 2_500


def test_layerwise_inference_has_few_options() -> None:
    assert len(inspect.signature(bali.LayerwiseInference).parameters) <= 14


def test_a_step_of_a_perceptron_can_be_followed_in_an_evening() -> None:
    inference = bali.LayerwiseInference(nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2)), bali.likelihoods.Gaussian(), 20)
    x, y = torch.randn(20, 3), torch.randn(20, 2)
    inference.step(x, y)
    entered: set[Path] = set()

    def note(frame: FrameType, event: str, _: Any) -> None:
        path = Path(frame.f_code.co_filename)
        if event == "call" and path.is_relative_to(ROOT):
            entered.add(path)

    before = sys.getprofile()
    sys.setprofile(note)
    try:
        inference.step(x, y)
    finally:
        sys.setprofile(before)
    assert ROOT / "inference" / "layer_update.py" in entered
    assert sum(len(path.read_text(encoding="utf-8").splitlines()) for path in entered) <= MOST_LINES
