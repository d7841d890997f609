"""MNIST as the measurements want it: rows of 784 pixels, standardised by the mean and deviation of all, float32."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor

from bali_benchmarks import datasets

N_PIXELS, N_CLASSES = 784, 10


@dataclass(frozen=True)
class Images:
    x_train: Tensor
    y_train: Tensor
    x_test: Tensor
    y_test: Tensor
    source: str  # goes into the lines


def mnist() -> Images:
    split = datasets.load("mnist").split(0)

    mean, deviation = float(split.X_train.mean()), float(split.X_train.std())

    def pixels(x: NDArray[Any]) -> Tensor:
        return torch.as_tensor(x).to(torch.float32).sub_(mean).div_(deviation)

    y_train, y_test = (torch.as_tensor(y).long() for y in (split.y_train, split.y_test))
    return Images(pixels(split.X_train), y_train, pixels(split.X_test), y_test, "MNIST")


def random_images(n_train: int = 60_000, n_test: int = 10_000, seed: int = 0) -> Images:
    """As large as MNIST and without meaning: enough to time a step, not to learn from."""
    generator = torch.Generator().manual_seed(seed)
    x_train, x_test = (torch.rand(n, N_PIXELS, generator=generator) for n in (n_train, n_test))
    y_train, y_test = (torch.randint(N_CLASSES, (n,), generator=generator) for n in (n_train, n_test))
    return Images(x_train, y_train, x_test, y_test, "random pixels")


def mnist_or_random() -> Images:
    try:
        return mnist()
    except datasets.DataError:
        return random_images()
