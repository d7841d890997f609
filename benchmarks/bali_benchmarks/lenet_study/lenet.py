"""LeNet-5 (LeCun et al., 1998) and the methods that train it.

The network is the original's in its sizes; rectifiers and largest values of pools stand where tanh and means stood, as in
most of its later uses. Pools come before rectifiers, which is the same function at a quarter of the cost.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

import bali
from bali.predictive.mixtures import ClassPredictive
from bali_benchmarks.performance.peer_trainings import LaplaceTraining
from bali_benchmarks.performance.trainings import (
    AdamTraining,
    BALITraining,
    DropoutTraining,
    OptimizerTraining,
    Training,
)

LEARNING_RATE, DROPOUT = 2e-3, 0.2
#: Networks of a mixture: as many as `BALIClassifier` has for images, and as many as ensembles usually have.
MEMBERS, ENSEMBLE = 3, 5
#: Rows of a prediction that are in memory at once.
_CHUNK = 1000


def lenet(size: int = 28, seed: int = 0, dropout: float = 0.0) -> nn.Sequential:
    """For images (n, 1, size, size) and ten classes; units before linear layers are dropped at that rate."""
    left = (size // 2 - 4) // 2
    if left < 1:
        raise ValueError(f"LeNet-5 needs images of at least 12 × 12 pixels, got {size} × {size}")
    drop = [nn.Dropout(dropout)] if dropout else []
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        convolutions = [nn.Conv2d(1, 6, 5, padding=2), nn.Conv2d(6, 16, 5)]
        linears = [nn.Linear(16 * left**2, 120), nn.Linear(120, 84), nn.Linear(84, 10)]
    layers: list[nn.Module] = []
    for convolution in convolutions:
        layers += [convolution, nn.MaxPool2d(2), nn.ReLU()]
    layers.append(nn.Flatten())
    for linear in linears:
        layers += [*drop, linear, nn.ReLU()]
    return nn.Sequential(*layers[:-1])


#: Of BALI.
BALI_SETTINGS: dict[str, float] = {"step_size": 0.5, "ema_rate": 0.3, "constant_steps": 100, "noise_floor": 0.01}
#: Of its statistics: 20,000 or all rows, whichever made 5,000 validation rows of the training part more likely.
EFFECTIVE_SIZE = {"mnist": 20_000, "fashion_mnist": 60_000}


def lenet_inference(module: nn.Module, n_data: int, seed: int = 0, **options: Any) -> bali.LayerwiseInference:
    """BALI with its settings for LeNet; `options` replace or add some."""
    settings: dict[str, Any] = {
        "step_size": BALI_SETTINGS["step_size"],
        "ema_rate": BALI_SETTINGS["ema_rate"],
        "noise_floor": BALI_SETTINGS["noise_floor"],
        "target_noise": False,
        "generator": torch.Generator().manual_seed(seed),
    }
    return bali.LayerwiseInference(module, bali.likelihoods.Categorical(), n_data, **(settings | options))


def lenet_course(step: int) -> dict[str, Any]:
    """Moving averages are slower after the first steps."""
    return {"ema_rate": BALI_SETTINGS["ema_rate"] * min(1.0, BALI_SETTINGS["constant_steps"] / step)}


class KFACLaplace(LaplaceTraining):
    """Laplace for the last layer with Kronecker factors, linearised, the prior chosen by the evidence.

    For all layers, the linearised network needs a Jacobian of all weights for each row of a prediction: many times the
    training.
    """

    def __init__(self, module: nn.Module, learning_rate: float) -> None:
        super().__init__(module, learning_rate, "last", 1.0)

    def finish(self, x: Tensor, y: Tensor) -> None:
        super().finish(x, y)
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "By default `link_approx`", UserWarning)  # the evidence needs no link
            self.posterior.optimize_prior_precision(method="marglik")

    def predict(self, x: Tensor, n_samples: int) -> ClassPredictive:
        if self.posterior is None:
            return super().predict(x, n_samples)
        parts = [
            self.posterior.predictive_samples(rows, pred_type="glm", n_samples=n_samples).detach()
            for rows in torch.split(x, _CHUNK)
        ]
        return ClassPredictive(torch.cat(parts, 1))


class Mixture(Training):
    """Networks trained from different initial weights, mixed: of Adam's, a deep ensemble (Lakshminarayanan et al., 2017)."""

    def __init__(self, members: list[Training]) -> None:
        self.members = members

    def step(self, x: Tensor, y: Tensor) -> None:
        for member in self.members:
            member.step(x, y)

    def predict(self, x: Tensor, n_samples: int) -> ClassPredictive:
        """With about that many draws in all."""
        each = math.ceil(n_samples / len(self.members))
        return ClassPredictive(torch.cat([member.predict(x, each).component_probabilities for member in self.members]))

    def kept(self) -> Any:
        return [member.kept() for member in self.members]

    def put_back(self, state: Any) -> None:
        for member, own in zip(self.members, state, strict=True):
            member.put_back(own)


def set_rate(training: Training, share: float) -> None:
    """Adam's learning rate after this share of the steps: half a wave of a cosine, from LEARNING_RATE to 0."""
    if isinstance(training, Mixture):
        for member in training.members:
            set_rate(member, share)
    if isinstance(training, OptimizerTraining):
        for group in training.optimizer.param_groups:
            group["lr"] = LEARNING_RATE * 0.5 * (1.0 + math.cos(math.pi * share))


class LenetTask(NamedTuple):
    """What a network is to be made for."""

    set_name: str
    size: int  # of the images
    n_rows: int


Start = Callable[[LenetTask, int], Training]  # from a task and a seed


@dataclass(frozen=True)
class LenetMethod:
    start: Start
    settings: dict[str, float]
    #: Rows to fit the temperature of the class probabilities on, as `BALIClassifier` does. They are not trained on.
    n_held_out: int = 0


def _bali(task: LenetTask, seed: int) -> Training:
    effective_size = min(EFFECTIVE_SIZE[task.set_name], task.n_rows)
    network = lenet(task.size, seed)
    return BALITraining(lenet_inference(network, task.n_rows, seed, effective_size=effective_size), lenet_course)


def _adam(task: LenetTask, seed: int) -> Training:
    return AdamTraining(lenet(task.size, seed), LEARNING_RATE)


def _dropout(task: LenetTask, seed: int) -> Training:
    return DropoutTraining(lenet(task.size, seed, DROPOUT), LEARNING_RATE)


def _laplace(task: LenetTask, seed: int) -> Training:
    return KFACLaplace(lenet(task.size, seed), LEARNING_RATE)


def _mixture(members: int, start: Start) -> Start:
    return lambda task, seed: Mixture([start(task, members * seed + k) for k in range(members)])


ADAM: dict[str, float] = {"learning_rate": LEARNING_RATE}
BALI, BALI_MIXTURE = "BALI", f"BALI, {MEMBERS} networks"
METHODS: dict[str, LenetMethod] = {
    BALI: LenetMethod(_bali, BALI_SETTINGS),
    # A mixture is less sure than any of its members, and the less so the more they differ.
    BALI_MIXTURE: LenetMethod(_mixture(MEMBERS, _bali), BALI_SETTINGS, n_held_out=5000),
    "Adam": LenetMethod(_adam, ADAM),
    "MC dropout": LenetMethod(_dropout, ADAM | {"dropout": DROPOUT}),
    "Laplace KFAC": LenetMethod(_laplace, ADAM),
    f"ensemble of {ENSEMBLE}": LenetMethod(_mixture(ENSEMBLE, _adam), ADAM),
}
