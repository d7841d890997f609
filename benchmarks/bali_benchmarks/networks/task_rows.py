"""Rows of the tasks: training, validation and test rows, standardised by the training part."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from bali_benchmarks import datasets

OTHER = {"mnist": "fashion_mnist", "fashion_mnist": "mnist"}
#: Test images of the other set that are to be told from the own ones.
_N_OUTSIDE = 2000
#: Characters of the text, and of a window of it.
_TEXT, CONTEXT = 100_000, 32

Pair = tuple[Tensor, Tensor]


@dataclass(frozen=True)
class Rows:
    train: Pair
    validation: Pair
    test: Pair
    outside: Tensor | None = None  # of another kind

    def first(self, n: int) -> Rows:
        """At most so many of each."""
        train, validation, test = ((x[:n], y[:n]) for x, y in (self.train, self.validation, self.test))
        return Rows(train, validation, test, None if self.outside is None else self.outside[:n])


def image_rows(name: str, shape: tuple[int, ...], seed: int, n: int | None = None) -> Rows:
    """Of `n` random training images, or of all, a tenth is for validation."""
    inside = _images(name)
    chosen = torch.randperm(len(inside.y_train), generator=torch.Generator().manual_seed(seed))[:n]
    x, y = torch.from_numpy(inside.X_train)[chosen].float(), torch.from_numpy(inside.y_train)[chosen].long()
    mean, deviation = x.mean(), x.std()

    def pixels(x: Any) -> Tensor:
        return torch.as_tensor(x).float().sub(mean).div(deviation).reshape(-1, *shape)

    test = pixels(inside.X_test), torch.from_numpy(inside.y_test).long()
    return Rows(*_held_out(pixels(x), y, seed), test, pixels(_images(OTHER[name]).X_test[:_N_OUTSIDE]))


def table_rows(name: str, seed: int) -> Rows:
    """Split number `seed`, of the published ones where there are some; of its training rows, a tenth is for validation."""
    dataset = datasets.load(name)
    split = dataset.split(seed % dataset.n_splits)
    x_train, x_test = (torch.from_numpy(x).float() for x in (split.X_train, split.X_test))
    mean, deviation = x_train.mean(0), x_train.std(0).clamp_min(1e-6)
    x_train, x_test = (x_train - mean) / deviation, (x_test - mean) / deviation
    y_train, y_test = (torch.from_numpy(y) for y in (split.y_train, split.y_test))
    if dataset.task == "regression":
        mean, deviation = y_train.mean(), y_train.std()
        y_train, y_test = (((y - mean) / deviation).float()[:, None] for y in (y_train, y_test))
    return Rows(*_held_out(x_train, y_train, seed), (x_test, y_test))


def text_rows(seed: int) -> Rows:
    """Windows of a text and what follows each of their characters; the last fifth is for validation and test."""
    text = datasets.sentences(_TEXT, seed)
    numbers = {character: number for number, character in enumerate(characters())}
    windows = torch.tensor([numbers[character] for character in text]).unfold(0, CONTEXT + 1, CONTEXT)
    tenth = len(windows) // 10
    parts = windows[: -2 * tenth], windows[-2 * tenth : -tenth], windows[-tenth:]
    train, validation, test = ((part[:, :-1].contiguous(), part[:, 1:].contiguous()) for part in parts)
    return Rows(train, validation, test)


@functools.cache
def characters() -> str:
    """All that the text has."""
    return "".join(sorted(set(datasets.sentences(20_000))))


@functools.lru_cache(2)
def _images(name: str) -> datasets.Split:
    return datasets.load(name).split(0)


def _held_out(x: Tensor, y: Tensor, seed: int) -> tuple[Pair, Pair]:
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(1000 + seed))
    held_out, rest = order[: len(x) // 10], order[len(x) // 10 :]
    return (x[rest], y[rest]), (x[held_out], y[held_out])
