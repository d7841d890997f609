"""BALI beside other Bayesian networks and ensembles: what they cost and how good they are, in one table."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from bali.predictive import metrics
from bali_benchmarks.performance.images import Images, mnist
from bali_benchmarks.performance.measurement import Bar, Bench, Line, Measurement, paragraph, table
from bali_benchmarks.performance.peer_trainings import (
    BackpropTraining,
    EnsembleTraining,
    IVONTraining,
    LaplaceTraining,
)
from bali_benchmarks.performance.timing import Clock
from bali_benchmarks.performance.trainings import (
    SIZES,
    AdamTraining,
    BALITraining,
    DropoutTraining,
    Training,
    mnist_inference,
    perceptron,
    shuffled_batches,
)

#: From layer sizes, training inputs, seed and a setting.
Start = Callable[[Sequence[int], Tensor, int, float], Training]
LEARNING_RATE = 1e-3  # of methods whose setting is another one


@dataclass(frozen=True)
class Peer:
    setting: str  # what is chosen on the validation rows
    values: tuple[float, float, float]
    start: Start


RATES = (5e-4, 1e-3, 2e-3)
PEERS: dict[str, Peer] = {
    "BALI": Peer(
        "effective size, of the rows,",
        (0.1, 0.3, 1.0),
        lambda sizes, x, seed, value: BALITraining(
            mnist_inference(perceptron(sizes, seed), len(x), seed, all_inputs=x, effective_size=value * len(x))
        ),
    ),
    "Adam": Peer("learning rate", RATES, lambda sizes, x, seed, value: AdamTraining(perceptron(sizes, seed), value)),
    "Laplace, last layer": Peer(
        "prior precision",
        (1.0, 10.0, 100.0),
        lambda sizes, x, seed, value: LaplaceTraining(perceptron(sizes, seed), LEARNING_RATE, "last", value),
    ),
    "Laplace, all layers": Peer(
        "prior precision",
        (10.0, 100.0, 1000.0),
        lambda sizes, x, seed, value: LaplaceTraining(perceptron(sizes, seed), LEARNING_RATE, "all", value),
    ),
    "IVON": Peer(
        "learning rate", (0.03, 0.1, 0.3), lambda sizes, x, seed, value: IVONTraining(perceptron(sizes, seed), value, len(x))
    ),
    "Bayes by backprop": Peer(
        "learning rate", RATES, lambda sizes, x, seed, value: BackpropTraining(perceptron(sizes, seed), value)
    ),
    "MC dropout": Peer(
        "dropout rate",
        (0.05, 0.1, 0.2),
        lambda sizes, x, seed, value: DropoutTraining(perceptron(sizes, seed, value), LEARNING_RATE),
    ),
    "ensemble of 5": Peer("learning rate", RATES, lambda sizes, x, seed, value: EnsembleTraining(sizes, seed, value, 5)),
}
Rows = tuple[Tensor, Tensor]


@dataclass(frozen=True)
class PeerFit:
    training: Training
    value: float
    seconds: float  # training and what follows it, without the validation
    epochs: int
    nll: float  # on the validation rows


def fit(
    peer: Peer,
    value: float,
    train: Rows,
    validation: Rows,
    *,
    sizes: Sequence[int],
    seed: int,
    batch: int,
    most_epochs: int,
    patience: int,
    samples: int,
    clock: Clock = time.perf_counter,
) -> PeerFit:
    """Train until the validation NLL has not improved for `patience` epochs, and go back to the best epoch."""

    def score(training: Training) -> float:
        return -metrics.log_likelihood(training.predict(validation[0], samples), validation[1])

    start = clock()
    training = peer.start(sizes, train[0], seed, value)
    seconds = clock() - start
    batches = shuffled_batches(*train, batch, torch.Generator().manual_seed(seed))
    best_nll, best_epoch, best, epoch = float("inf"), 0, training.kept(), 0
    while epoch < most_epochs and epoch - best_epoch < patience:
        epoch += 1
        start = clock()
        for _ in range(len(train[0]) // batch):
            training.step(*next(batches))
        seconds += clock() - start
        nll = score(training)
        if nll < best_nll:
            best_nll, best_epoch, best = nll, epoch, training.kept()
    training.put_back(best)
    start = clock()
    training.finish(*train)
    seconds += clock() - start
    return PeerFit(training, value, seconds, epoch, score(training))


def measure(
    images: Images, method: str, *, n_train: int, n_validation: int, samples: int, seed: int, **options: Any
) -> list[Line]:
    peer, end = PEERS[method], n_train + n_validation
    train = images.x_train[:n_train], images.y_train[:n_train]
    validation = images.x_train[n_train:end], images.y_train[n_train:end]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        fits = [fit(peer, value, train, validation, samples=samples, seed=seed, **options) for value in peer.values]
        chosen = min(fits, key=lambda one: one.nll)
        start = time.perf_counter()
        predictive = chosen.training.predict(images.x_test, samples)
        seconds = time.perf_counter() - start
    return [
        {
            "method": method,
            "setting": peer.setting,
            "value": chosen.value,
            "fit_seconds": chosen.seconds,
            "epochs": chosen.epochs,
            "predict_seconds": seconds,
            "nll": -metrics.log_likelihood(predictive, images.y_test),
            "ece": metrics.expected_calibration_error(predictive, images.y_test),
            "accuracy": metrics.accuracy(predictive, images.y_test),
            "n_train": n_train,
            "n_validation": n_validation,
            "batch": options["batch"],
            "most_epochs": options["most_epochs"],
            "patience": options["patience"],
            "n_test": len(images.x_test),
            "samples": samples,
            "threads": torch.get_num_threads(),
        }
    ]


def jobs(
    load: Callable[[], Images] = mnist,
    *,
    methods: Mapping[str, Peer] = PEERS,
    n_train: int = 10_000,
    n_validation: int = 2_000,
    batch: int = 500,
    most_epochs: int = 50,
    patience: int = 5,
    samples: int = 32,
    sizes: Sequence[int] = SIZES,
    seed: int = 0,
) -> list[Measurement]:
    rows = {"n_train": n_train, "n_validation": n_validation, "samples": samples, "seed": seed}
    options: dict[str, Any] = {"batch": batch, "most_epochs": most_epochs, "patience": patience, "sizes": sizes}

    def job(method: str) -> Measurement:
        return Measurement({"method": method}, lambda: measure(load(), method, **rows, **options))

    return [job(method) for method in methods]


def bars(lines: Sequence[Line]) -> list[Bar]:
    """None: the table is for the reader to judge."""
    return []


def section(lines: Sequence[Line]) -> list[str]:
    first = lines[0]
    adam = next((line["fit_seconds"] for line in lines if line["method"] == "Adam"), None)
    rows = [
        (
            line["method"],
            f"{line['setting']} {line['value']:g}",
            str(line["epochs"]),
            f"{line['fit_seconds']:.1f}",
            "–" if adam is None else f"{line['fit_seconds'] / adam:.1f}",
            f"{line['predict_seconds']:.2f}",
            f"{line['nll']:.4f}",
            f"{line['ece']:.4f}",
            f"{line['accuracy']:.4f}",
        )
        for line in lines
    ]
    return [
        *paragraph(
            f"The network 784-256-256-10 on {first['n_train']:,} training rows of MNIST, scored on",
            f"{first['n_test']:,} test",
            f"rows. Every method takes batches of {first['batch']} rows, stops when {first['patience']} epochs brought no",
            f"better NLL on {first['n_validation']:,} further rows ({first['most_epochs']} epochs at most),",
            "goes back to the",
            "best epoch and has one setting chosen among three on the same rows. The rest is as in the",
            "guides of laplace-torch,",
            "ivon-opt and bayesian-torch, except that Laplace for all layers draws weights instead of",
            "linearising the network,",
            "and that BALI has its settings for MNIST, which were found on that set.",
            f"{first['samples']} samples make a prediction where a method samples. One seed; the methods",
            "ran one after another,",
            "so that times here are less comparable than the ratios above. PeerFit times are those of the",
            "chosen setting, without",
            f"validation. Threads: {first['threads']}.",
        ),
        "",
        *table(
            ("method", "chosen", "epochs", "fit, s", "of Adam's", "predict, s", "test NLL", "ECE", "accuracy"),
            rows,
        ),
    ]


BENCH = Bench("peers", "Other methods", jobs, section, bars)
