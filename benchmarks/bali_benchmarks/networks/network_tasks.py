"""The tasks: a network, its rows, and what it is called on the page."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from torch import nn

from bali_benchmarks.lenet_study.lenet import lenet
from bali_benchmarks.networks.task_networks import (
    CharacterTransformer,
    RowGRU,
    RowTransformer,
    convolutional,
    perceptron,
)
from bali_benchmarks.networks.task_rows import CONTEXT, Rows, characters, image_rows, table_rows, text_rows


@dataclass(frozen=True)
class NetworkTask:
    title: str
    make: Callable[[], nn.Module]
    rows: Callable[[int], Rows]  # of a seed
    minutes: float  # that both methods take, about
    batch: int = 256  # of Adam
    is_regression: bool = False
    is_image: bool = False
    is_extra: bool = False  # not one of the ten

    def network(self, seed: int) -> nn.Module:
        """The same initial weights for the same seed."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            return self.make()


def _images(
    title: str,
    make: Callable[[], nn.Module],
    name: str,
    shape: tuple[int, ...],
    minutes: float,
    n: int | None = 10_000,
    *,
    is_extra: bool = False,
) -> NetworkTask:
    rows = partial(image_rows, name, shape, n=n)
    return NetworkTask(title, make, rows, minutes, is_image=True, is_extra=is_extra)


def _telescope(depth: int, *, is_extra: bool = False) -> NetworkTask:
    make = partial(perceptron, 10, [128] * depth, 2)
    return NetworkTask(f"telescope, {depth} × 128", make, partial(table_rows, "telescope"), 1.0, is_extra=is_extra)


def _regression(name: str, *, is_extra: bool = False) -> NetworkTask:
    make, rows = partial(perceptron, 8, [64, 64], 1), partial(table_rows, name)
    return NetworkTask(f"{name}, 64-64", make, rows, 0.5, batch=64, is_regression=True, is_extra=is_extra)


def _character_transformer() -> nn.Module:
    return CharacterTransformer(len(characters()), CONTEXT)


_SQUARE = (1, 28, 28)
_SMALL_PERCEPTRON = partial(perceptron, 784, [256, 256], 10)
_WIDE_PERCEPTRON = partial(perceptron, 784, [1024, 1024], 10)
TASKS = {
    "energy": _regression("energy"),
    "telescope": _telescope(6),
    "mlp": _images("MNIST, 784-256-256-10", _SMALL_PERCEPTRON, "mnist", (784,), 1.0),
    "gru": _images("Fashion-MNIST, GRU on rows", RowGRU, "fashion_mnist", (28, 28), 4.0),
    "transformer": _images("Fashion-MNIST, transformer on rows", RowTransformer, "fashion_mnist", (28, 28), 8.0),
    "cnn": _images("Fashion-MNIST, CNN", partial(convolutional, has_norms=False), "fashion_mnist", _SQUARE, 6.0),
    "cnn-norms": _images(
        "Fashion-MNIST, CNN with batch norms", partial(convolutional, has_norms=True), "fashion_mnist", _SQUARE, 7.0
    ),
    "characters": NetworkTask("sentences, character transformer", _character_transformer, text_rows, 6.0, batch=64),
    "lenet-mnist": _images("MNIST, all rows, LeNet-5", lenet, "mnist", _SQUARE, 15.0, None),
    "lenet-fashion": _images("Fashion-MNIST, all rows, LeNet-5", lenet, "fashion_mnist", _SQUARE, 15.0, None),
    "telescope-2": _telescope(2, is_extra=True),
    "telescope-4": _telescope(4, is_extra=True),
    "telescope-12": _telescope(12, is_extra=True),
    "concrete": _regression("concrete", is_extra=True),
    "mlp-all": _images(
        "MNIST, all rows, 784-256-256-10",
        _SMALL_PERCEPTRON,
        "mnist",
        (784,),
        3.0,
        None,
        is_extra=True,
    ),
    "mlp-wide": _images("MNIST, 784-1024-1024-10", _WIDE_PERCEPTRON, "mnist", (784,), 8.0, is_extra=True),
}
