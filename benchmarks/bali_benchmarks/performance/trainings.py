"""What is compared: the same network trained by BALI, by Adam, and by Adam with dropout."""

from __future__ import annotations

import copy
import itertools
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

import bali
from bali.inference.prediction import NetworkPosterior
from bali.layers.modules import LeakyTanh
from bali.predictive.mixtures import ClassPredictive

#: The network of every MNIST measurement.
SIZES = (784, 256, 256, 10)


def perceptron(sizes: Sequence[int] = SIZES, seed: int = 0, dropout: float = 0.0) -> nn.Sequential:
    """Linear layers with torch's own initial weights and leaky tanh between them, dropped out where asked for."""
    layers: list[nn.Module] = []
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        for n_in, n_out in itertools.pairwise(sizes):
            layers += [nn.Linear(n_in, n_out), LeakyTanh()] + ([nn.Dropout(dropout)] if dropout else [])
    return nn.Sequential(*layers[: -2 if dropout else -1])


#: From the number of a step, counted from 1, to what it is asked for.
Course = Callable[[int], dict[str, Any]]


def mnist_course(step: int) -> dict[str, Any]:
    """Steps get shorter, and moving averages slower."""
    return {"step_size": 0.5 if step < 240 else 0.25, "ema_rate": 0.3 * min(1.0, 150.0 / step)}


def mnist_inference(
    module: nn.Module, n_data: int, seed: int = 0, *, all_inputs: Tensor | None = None, **options: Any
) -> bali.LayerwiseInference:
    """BALI with its settings for MNIST; `options` replace or add some. Given all inputs, their statistics are exact."""
    settings: dict[str, Any] = mnist_course(1) | {
        "effective_size": n_data / 10,
        "target_noise": False,
        "noise_floor": 0.001,
        "output_noise_floor": 0.01,
    }
    generator = torch.Generator().manual_seed(seed)
    categorical = bali.likelihoods.Categorical()
    inference = bali.LayerwiseInference(module, categorical, n_data, generator=generator, **(settings | options))
    if all_inputs is not None:
        inference.use_input_moments(bali.input_moments(all_inputs))
    return inference


class Training(ABC):
    """A network on its way, under any of the methods."""

    @abstractmethod
    def step(self, x: Tensor, y: Tensor) -> None:
        """Take in one mini-batch."""

    def finish(self, x: Tensor, y: Tensor) -> None:
        """After the last step, with all training rows; for methods that add a posterior at the end."""
        return None

    @abstractmethod
    def predict(self, x: Tensor, n_samples: int) -> ClassPredictive:
        """Class probabilities, from that many draws where the method draws."""

    @abstractmethod
    def kept(self) -> Any:
        """A copy of the state, for `put_back`."""

    @abstractmethod
    def put_back(self, state: Any) -> None: ...


class BALITraining(Training):
    def __init__(self, inference: bali.LayerwiseInference, course: Course = mnist_course) -> None:
        self.inference, self.course = inference, course

    def step(self, x: Tensor, y: Tensor) -> None:
        self.inference.step(x, y, **self.course(self.inference.state.step + 1))

    def predict(self, x: Tensor, n_samples: int) -> ClassPredictive:
        return class_predictive(self.inference, x, n_samples)

    def kept(self) -> Any:
        return copy.deepcopy(self.inference.state_dict())

    def put_back(self, state: Any) -> None:
        self.inference.load_state_dict(state)


def class_predictive(inference: bali.LayerwiseInference | NetworkPosterior, x: Tensor, n_samples: int) -> ClassPredictive:
    predictive = inference.predict(x, n_samples)
    assert isinstance(predictive, ClassPredictive)
    return predictive


class OptimizerTraining(Training):
    """A module under an optimizer of torch and the cross-entropy."""

    def __init__(self, module: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        self.module, self.optimizer = module, optimizer

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        return functional.cross_entropy(self.module(x), y)

    def step(self, x: Tensor, y: Tensor) -> None:
        self.optimizer.zero_grad()
        self.loss(x, y).backward()  # type: ignore[no-untyped-call]
        self.optimizer.step()

    @torch.no_grad()
    def predict(self, x: Tensor, n_samples: int) -> ClassPredictive:
        return ClassPredictive(self.module(x).softmax(-1)[None])

    def kept(self) -> Any:
        return copy.deepcopy((self.module.state_dict(), self.optimizer.state_dict()))

    def put_back(self, state: Any) -> None:
        self.module.load_state_dict(state[0])
        self.optimizer.load_state_dict(state[1])


class AdamTraining(OptimizerTraining):
    def __init__(self, module: nn.Module, learning_rate: float, weight_decay: float = 0.0) -> None:
        super().__init__(module, fused_adam(module, learning_rate, weight_decay))


class DropoutTraining(AdamTraining):
    """Monte Carlo dropout: predictions keep dropping units (Gal and Ghahramani, 2016)."""

    def __init__(self, module: nn.Sequential, learning_rate: float) -> None:
        super().__init__(module, learning_rate)
        first = next(i for i, layer in enumerate(module) if isinstance(layer, nn.Dropout))
        self.certain, self.dropping = module[:first], module[first:]

    @torch.no_grad()
    def predict(self, x: Tensor, n_samples: int) -> ClassPredictive:
        hidden = self.certain(x)  # nothing is dropped there: once is enough
        return ClassPredictive(torch.stack([self.dropping(hidden).softmax(-1) for _ in range(n_samples)]))


def fused_adam(module: nn.Module, learning_rate: float, weight_decay: float = 0.0) -> torch.optim.Adam:
    return torch.optim.Adam(module.parameters(), lr=learning_rate, weight_decay=weight_decay, fused=True)


def shuffled_batches(x: Tensor, y: Tensor, size: int, generator: torch.Generator) -> Iterator[tuple[Tensor, Tensor]]:
    """Epoch after epoch, each in a new order; rows that do not fill a batch are left out of their epoch."""
    size = min(size, len(x))
    while True:
        order = torch.randperm(len(x), generator=generator)
        for rows in order[: len(x) // size * size].reshape(-1, size):
            yield x[rows], y[rows]


def endless_batches(x: Tensor, y: Tensor, size: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Consecutive rows again and again, without a copy: nothing but the step itself is timed."""
    starts = range(0, len(x) - size + 1, size)
    return itertools.cycle([(x[start : start + size], y[start : start + size]) for start in starts])
