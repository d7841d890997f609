"""What the tests of the measurements share: a clock that is told the time, and data that is easy to learn."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from bali.predictive.mixtures import ClassPredictive
from bali_benchmarks.performance.images import Images, random_images
from bali_benchmarks.performance.trainings import Training

#: A network that takes images and is soon trained.
SMALL = (784, 8, 10)


class FakeClock:
    """Time passes only where somebody says so."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now

    def spend(self, seconds: float) -> None:
        self.now += seconds


def few_images() -> Images:
    """Two hundred rows whose class can be seen: one bright pixel in ten."""
    images = random_images(200, 50)
    for x, y in ((images.x_train, images.y_train), (images.x_test, images.y_test)):
        x.mul_(0.1)[torch.arange(len(x)), y] = 1.0
    return images


class Scripted(Training):
    """Each step takes so long; the validation NLL follows a script, a value for each time it is asked for."""

    def __init__(self, clock: FakeClock, seconds: float, script: list[float]) -> None:
        self.clock, self.seconds, self.script = clock, seconds, iter(script)

    def step(self, x: Tensor, y: Tensor) -> None:
        self.clock.spend(self.seconds)

    def predict(self, x: Tensor, n_samples: int) -> ClassPredictive:
        self.clock.spend(1000.0)  # is not to count
        right = math.exp(-next(self.script))
        return ClassPredictive(torch.tensor([[[right, 1 - right]]], dtype=torch.float64))

    def kept(self) -> Any:
        return None

    def put_back(self, state: Any) -> None:
        assert state is None
