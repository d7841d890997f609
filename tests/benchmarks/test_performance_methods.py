"""What the measurements train: other people's methods."""

from __future__ import annotations

import importlib.util
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from bali.layers.modules import LeakyTanh
from bali_benchmarks.performance import peer_trainings, peers
from bali_benchmarks.performance.trainings import (
    AdamTraining,
    BALITraining,
    DropoutTraining,
    Training,
    mnist_inference,
    perceptron,
    shuffled_batches,
)
from support.performance_cases import SMALL, FakeClock, Scripted, few_images


def test_every_epoch_has_a_new_order_of_the_same_rows() -> None:
    x, y = torch.arange(7.0)[:, None], torch.arange(7)
    batches = shuffled_batches(x, y, 3, torch.Generator().manual_seed(0))
    epochs = [[next(batches) for _ in range(2)] for _ in range(20)]
    assert all(torch.equal(a[:, 0].long(), b) for epoch in epochs for a, b in epoch)
    assert all(len(set(torch.cat([b for _, b in epoch]).tolist())) == 6 for epoch in epochs)
    assert len({tuple(torch.cat([b for _, b in epoch]).tolist()) for epoch in epochs}) > 1


# --- other people's methods -------------------------------------------------------------------------------------


def trainings() -> dict[str, Callable[[], Training]]:
    """Those whose package is here: the others' are an optional extra."""
    packages = {"Laplace": "laplace", "IVON": "ivon", "backprop": "bayesian_torch"}
    absent = [name for name, package in packages.items() if importlib.util.find_spec(package) is None]
    every: dict[str, Callable[[], Training]] = {
        "BALI": lambda: BALITraining(mnist_inference(perceptron(SMALL), 2000)),
        "Adam": lambda: AdamTraining(perceptron(SMALL), 1e-2),
        "dropout": lambda: DropoutTraining(perceptron(SMALL, dropout=0.1), 1e-2),
        "Laplace, last": lambda: peer_trainings.LaplaceTraining(perceptron(SMALL), 1e-2, "last", 10.0),
        "Laplace, all": lambda: peer_trainings.LaplaceTraining(perceptron(SMALL), 1e-2, "all", 10.0),
        "IVON": lambda: peer_trainings.IVONTraining(perceptron(SMALL), 0.3, 200),
        "backprop": lambda: peer_trainings.BackpropTraining(perceptron(SMALL), 1e-2),
        "ensemble": lambda: peer_trainings.EnsembleTraining(SMALL, 0, 1e-2, 2),
    }
    return {name: start for name, start in every.items() if name.partition(",")[0] not in absent}


@pytest.mark.parametrize("name", trainings())
def test_every_method_learns_and_can_go_back(name: str) -> None:
    """Rows whose class is plain to see, and the state of an earlier step put back."""
    torch.manual_seed(0)
    images, training = few_images(), trainings()[name]()
    x, y = images.x_train, images.y_train

    def nll() -> float:
        return -float(training.predict(x, 8).log_prob(y).mean())

    before, start = nll() if not name.startswith("BALI") else math.log(10), training.kept()
    for _ in range(60):
        training.step(x, y)
    assert nll() < 0.8 * before
    kept = training.kept()
    for _ in range(5):
        training.step(x, y)
    if not name.startswith("BALI"):
        training.put_back(start)
        assert nll() == pytest.approx(before, rel=0.05)
    training.put_back(kept)
    training.finish(x, y)
    assert nll() < 0.8 * before


def test_a_missing_package_names_the_extra() -> None:
    with pytest.raises(peer_trainings.MissingPeerError, match=r"bali-benchmarks\[peers\]"):
        peer_trainings.peer("no_such_package.part")


def test_the_best_epoch_and_the_time_of_training_alone_are_kept() -> None:
    clock = FakeClock()
    peer = peers.Peer("x", (1.0, 2.0, 3.0), lambda sizes, x, seed, value: Scripted(clock, 2.0, [0.5, 0.4, 0.6, 0.7, 0.4]))
    rows = torch.zeros(4, 1), torch.zeros(4, dtype=torch.long)
    one = torch.zeros(1, 1), torch.zeros(1, dtype=torch.long)
    options: dict[str, Any] = {"sizes": SMALL, "seed": 0, "batch": 2, "most_epochs": 10, "patience": 2, "samples": 1}
    found = peers.fit(peer, 1.0, rows, one, clock=clock, **options)
    assert (found.epochs, found.seconds) == (4, 4 * 2 * 2.0)
    assert found.nll == pytest.approx(0.4)


def test_networks_start_from_their_seed() -> None:
    a, b, other = (perceptron(SMALL, seed) for seed in (1, 1, 2))
    assert all(torch.equal(p, q) for p, q in zip(a.parameters(), b.parameters(), strict=True))
    assert not torch.equal(next(a.parameters()), next(other.parameters()))
    dropping = perceptron(SMALL, 1, dropout=0.2)
    assert [type(layer) for layer in dropping] == [nn.Linear, LeakyTanh, nn.Dropout, nn.Linear]
