"""A second reading of the paper's Algorithm 1, in plain NumPy and float64, to compare the package with.

It is written for being checked against the paper, not for speed: targets Y are rows, the averages Ψ start from zero
and are divided by b, the posterior is computed from its natural parameters, the inverse of a matrix is its inverse, and
the bias is a column of ones. What the paper leaves open follows the design: M₀ = 0, u₀ = D_y + 1, N_eff in place of
N, b = 1 − Π(1−β_s), and R₀ is a variance of the network's own weights.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]


def with_ones(x: Array) -> Array:
    return np.concatenate([x, np.ones((len(x), 1))], axis=1)


def tanh_slope(z: Array) -> Array:
    return 1.0 - np.tanh(z) ** 2


def relu(z: Array) -> Array:
    return np.where(z > 0.0, z, 0.0)


def relu_slope(z: Array) -> Array:
    return np.where(z > 0.0, 1.0, 0.0)


ACTIVATIONS: dict[str, tuple[Callable[[Array], Array], Callable[[Array], Array]]] = {
    "tanh": (np.tanh, tanh_slope),
    "relu": (relu, relu_slope),
}


def gaussian_gradient(z: Array, y: npt.NDArray[Any], noise: Array) -> Array:
    """∂ log N(y; z, Σ) / ∂z = Σ⁻¹(y − z), row by row."""
    return np.stack([np.linalg.inv(noise) @ (y_n - z_n) for z_n, y_n in zip(z, y, strict=True)])


def categorical_gradient(z: Array, y: npt.NDArray[Any], noise: Array) -> Array:
    """∂ log softmax(z)_y / ∂z is one at the class, minus the probabilities."""
    odds = np.exp(z - z.max(axis=1, keepdims=True))
    return np.eye(z.shape[1])[y] - odds / odds.sum(axis=1, keepdims=True)


def bernoulli_gradient(z: Array, y: npt.NDArray[Any], noise: Array) -> Array:
    """∂ [y log σ(z) + (1−y) log(1−σ(z))] / ∂z = y − σ(z)."""
    return y - 1.0 / (1.0 + np.exp(-z))


GRADIENTS: dict[str, Callable[[Array, npt.NDArray[Any], Array], Array]] = {
    "gaussian": gaussian_gradient,
    "categorical": categorical_gradient,
    "bernoulli": bernoulli_gradient,
}


@dataclass
class Layer:
    """One linear layer: its prior, its averages Ψ and its posterior (M, R⁻¹, U, u)."""

    weights: Array  # (D_x, D_y) of the forward pass; with a bias, the bias is the last row
    bias: bool
    prior_variance: float
    noise_floor: float
    n_eff: float
    mean: Array = field(init=False)
    precision: Array = field(init=False)
    scale: Array = field(init=False)
    dof: float = field(init=False)

    def __post_init__(self) -> None:
        d_x, d_y = self.weights.shape
        self.prior_mean = np.zeros((d_x, d_y))
        self.prior_precision = np.eye(d_x) / self.prior_variance
        self.prior_scale = self.noise_floor * self.n_eff * np.eye(d_y)
        self.prior_dof = d_y + 1.0
        self.psi_xx = np.zeros((d_x, d_x))
        self.psi_xy = np.zeros((d_x, d_y))
        self.psi_yy = np.zeros((d_y, d_y))
        self.psi_gg = np.zeros(d_y)
        self.mean = self.weights.copy()  # what the first targets start from

    def inputs(self, rows: Array) -> Array:
        return with_ones(rows) if self.bias else rows

    def noise_mode(self) -> Array:
        """Σ = U / (u₀ + N + D_y + 1), the mode of the inverse Wishart distribution."""
        return self.scale / (self.prior_dof + self.n_eff + self.scale.shape[0] + 1.0)

    def targets(self, x: Array, z: Array, g: Array, b: float, alpha: float, target_noise: bool) -> Array:
        """Y = X M_{t−1} + E + α G / √(Ψgg/b), where E = Z − X M_{t−1} can be left out; no gradient, no movement."""
        root = np.sqrt(self.psi_gg / b)
        move = alpha * np.divide(g, root, out=np.zeros_like(g), where=root > 0.0)
        start = x @ self.mean
        return start + (z - start) + move if target_noise else start + move

    def absorb(self, x: Array, y: Array, beta: float, b: float) -> None:
        """The averages of a batch that stands for N_eff rows, and the posterior they give."""
        weight = self.n_eff / len(x)
        self.psi_xx = (1 - beta) * self.psi_xx + beta * weight * x.T @ x
        self.psi_xy = (1 - beta) * self.psi_xy + beta * weight * x.T @ y
        self.psi_yy = (1 - beta) * self.psi_yy + beta * weight * y.T @ y
        m0, p0 = self.prior_mean, self.prior_precision
        self.precision = p0 + self.psi_xx / b
        r = np.linalg.inv(self.precision)
        self.mean = r @ (p0 @ m0 + self.psi_xy / b)
        self.scale = self.prior_scale + m0.T @ p0 @ m0 - self.mean.T @ self.precision @ self.mean + self.psi_yy / b
        self.dof = self.prior_dof + self.n_eff


@dataclass
class Algorithm1:
    """The loop of Algorithm 1 over the layers of a multi-layer perceptron."""

    layers: list[Layer]
    activation: str
    likelihood: str
    step_size: float
    target_noise: bool = True
    steps: int = 0
    forgotten: float = 1.0  # Π(1−β_s)

    def step(
        self,
        x: Array,
        y: npt.NDArray[Any],
        beta: float,
        weights: Sequence[Array] | None = None,
        noise: Sequence[Array] | None = None,
    ) -> None:
        """One pass through the loop: at `weights` (the means unless given), with `noise` added to each layer's outputs."""
        h, slope = ACTIVATIONS[self.activation]
        if weights is None:
            weights = [layer.weights if self.steps == 0 else layer.mean for layer in self.layers]
        self.steps += 1
        self.forgotten *= 1.0 - beta
        b = 1.0 - self.forgotten
        xs, zs, rows = [], [], x
        for index, (layer, w) in enumerate(zip(self.layers, weights, strict=True)):
            xs.append(layer.inputs(rows))
            zs.append(xs[-1] @ w if noise is None else xs[-1] @ w + noise[index])
            rows = h(zs[-1])
        gs = self._gradients(zs, y, weights, slope)
        for index, layer in enumerate(self.layers):
            layer.psi_gg = (1 - beta) * layer.psi_gg + beta * np.mean(gs[index] ** 2, axis=0)
            if index == len(self.layers) - 1 and self.likelihood == "gaussian":
                targets = np.asarray(y, dtype=np.float64)
            else:
                targets = layer.targets(xs[index], zs[index], gs[index], b, self.step_size, self.target_noise)
            layer.absorb(xs[index], targets, beta, b)

    def _gradients(
        self, zs: list[Array], y: npt.NDArray[Any], weights: Sequence[Array], slope: Callable[[Array], Array]
    ) -> list[Array]:
        """∂ log p(y | x, W) / ∂z_l for every layer, from the last to the first; Σ_L = I while there is no posterior."""
        last = self.layers[-1]
        noise = np.eye(zs[-1].shape[1]) if self.steps == 1 else last.noise_mode()
        gs = [GRADIENTS[self.likelihood](zs[-1], y, noise)]
        for index in range(len(self.layers) - 1, 0, -1):
            w = weights[index]
            into_features = w[:-1] if self.layers[index].bias else w
            gs.insert(0, (gs[0] @ into_features.T) * slope(zs[index - 1]))
        return gs
