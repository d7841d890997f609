"""Monte Carlo dropout (Gal and Ghahramani, 2016), its rate and noise chosen on validation rows as in its authors' rerun.

Weights are trained by Adam with dropout before every layer but the first; a prediction keeps dropping units.
"""

from __future__ import annotations

import copy
import itertools
from collections.abc import Sequence
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.base import BaseEstimator
from sklearn.preprocessing import StandardScaler
from torch import Tensor, nn
from torch.nn import functional

from bali.mlp import ACTIVATIONS
from bali.predictive import ClassPredictive, Predictive, RegressionPredictive

Array = NDArray[Any]


class MCDropout(BaseEstimator):  # type: ignore[misc]
    """For regression or classification, as `classification` says; trained until validation stops improving."""

    def __init__(
        self,
        hidden_layer_sizes: Sequence[int] = (50,),
        activation: str = "relu",
        *,
        classification: bool = False,
        rates: Sequence[float] = (0.005, 0.05, 0.2),
        learning_rate: float = 1e-3,
        weight_decay: float = 1e-4,
        batch_size: int = 128,
        max_epochs: int = 1000,
        patience: int = 50,
        validation_fraction: float = 0.1,
        n_samples: int = 256,
        random_state: int = 0,
    ) -> None:
        self.hidden_layer_sizes = hidden_layer_sizes
        self.activation = activation
        self.classification = classification
        self.rates = rates
        self.learning_rate = learning_rate
        self.weight_decay = weight_decay
        self.batch_size = batch_size
        self.max_epochs = max_epochs
        self.patience = patience
        self.validation_fraction = validation_fraction
        self.n_samples = n_samples
        self.random_state = random_state

    def fit(self, X: Array, y: Array) -> Self:
        self.generator_ = torch.Generator().manual_seed(self.random_state)
        self.input_scaler_ = StandardScaler().fit(X)
        x = torch.as_tensor(self.input_scaler_.transform(X), dtype=torch.float32)
        if self.classification:
            self.classes_, index = np.unique(y, return_inverse=True)
            targets, n_outputs = torch.as_tensor(index), len(self.classes_)
        else:
            self.target_scaler_ = StandardScaler().fit(y.reshape(-1, 1))
            targets, n_outputs = torch.as_tensor(self.target_scaler_.transform(y.reshape(-1, 1)), dtype=torch.float32), 1
        order = torch.randperm(len(x), generator=self.generator_)
        n_held_out = max(1, round(self.validation_fraction * len(x)))
        held_out, train = order[:n_held_out], order[n_held_out:]
        fits = []
        for rate in self.rates:
            network = self._network(x.shape[1], n_outputs, rate)
            score, epochs = self._train(network, x[train], targets[train], x[held_out], targets[held_out])
            fits.append((score, rate, epochs, network))
        _, self.rate_, self.n_epochs_, self.network_ = max(fits, key=lambda fit: fit[0])
        if not self.classification:
            self.noise_ = self._noise_variance(self.network_, x[held_out], targets[held_out])
        return self

    def _network(self, n_inputs: int, n_outputs: int, rate: float) -> nn.Sequential:
        torch.manual_seed(self.random_state)
        sizes = [n_inputs, *self.hidden_layer_sizes]
        layers: list[nn.Module] = []
        for n_in, n_out in itertools.pairwise(sizes):
            layers += [nn.Linear(n_in, n_out), ACTIVATIONS[self.activation](), nn.Dropout(rate)]
        return nn.Sequential(*layers, nn.Linear(sizes[-1], n_outputs))

    def _train(self, network: nn.Sequential, x: Tensor, y: Tensor, x_val: Tensor, y_val: Tensor) -> tuple[float, int]:
        """Adam until the validation score has not improved for `patience` epochs; leaves the best weights in place."""
        optimizer = torch.optim.Adam(network.parameters(), lr=self.learning_rate, weight_decay=self.weight_decay)
        best, best_epoch, best_weights = -np.inf, 0, copy.deepcopy(network.state_dict())
        for epoch in range(1, self.max_epochs + 1):
            network.train()
            order = torch.randperm(len(x), generator=self.generator_)
            for start in range(0, len(x), self.batch_size):
                rows = order[start : start + self.batch_size]
                optimizer.zero_grad()
                output = network(x[rows])
                loss = (
                    functional.cross_entropy(output, y[rows]) if self.classification else (output - y[rows]).square().mean()
                )
                loss.backward()
                optimizer.step()
            score = self._score(network, x_val, y_val)
            if score > best:
                best, best_epoch, best_weights = score, epoch, copy.deepcopy(network.state_dict())
            elif epoch - best_epoch >= self.patience:
                break
        network.load_state_dict(best_weights)
        return best, best_epoch

    def _score(self, network: nn.Sequential, x: Tensor, y: Tensor, n_samples: int = 16) -> float:
        noise = None if self.classification else self._noise_variance(network, x, y)
        return float(self._predictive(network, x, noise, n_samples).log_prob(y).mean())

    def _noise_variance(self, network: nn.Sequential, x: Tensor, y: Tensor) -> float:
        """The variance left over by the predictive mean, on rows that were not trained on."""
        residual = self._samples(network, x, 16).mean(0) - y
        return max(float(residual.square().mean()), 1e-6)

    @torch.no_grad()
    def _samples(self, network: nn.Sequential, x: Tensor, n_samples: int) -> Tensor:
        network.train()  # dropout stays on
        return torch.stack([network(x) for _ in range(n_samples)])

    def _predictive(self, network: nn.Sequential, x: Tensor, noise: float | None, n_samples: int) -> Predictive:
        z = self._samples(network, x, n_samples)
        if noise is None:
            return ClassPredictive(z.softmax(-1))
        return RegressionPredictive(z, torch.full((1, 1, 1), noise))

    def pred_dist(self, X: Array) -> Predictive:
        x = torch.as_tensor(self.input_scaler_.transform(X), dtype=torch.float32)
        torch.manual_seed(self.random_state)
        if self.classification:
            return self._predictive(self.network_, x, None, self.n_samples)
        standard = self._predictive(self.network_, x, self.noise_, self.n_samples)
        assert isinstance(standard, RegressionPredictive)
        scale, mean = (
            torch.as_tensor(a, dtype=torch.float32) for a in (self.target_scaler_.scale_, self.target_scaler_.mean_)
        )
        return standard.affine(scale, mean)
