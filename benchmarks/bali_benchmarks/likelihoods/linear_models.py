"""Linear models of counts and durations by maximum likelihood: what a statistician would try first.

Inputs are standardised. Coefficients have a penalty that only keeps the optimum finite.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.optimize import minimize
from torch import Tensor

from bali.predictive.likelihoods import FamilyLikelihood, NegativeBinomial, Poisson
from bali.predictive.mixtures import Predictive

Array = NDArray[np.float64]
_PENALTY = 1e-4


class LinearModel:
    """A likelihood whose first output is linear in the inputs, and whose others are constants: a GLM, or a Weibull model."""

    def __init__(self, likelihood: FamilyLikelihood) -> None:
        self.likelihood = likelihood

    def fit(self, X: Array, y: Tensor) -> LinearModel:
        self.mean, self.scale = X.mean(0), X.std(0) + 1e-12
        x, n_outputs = self._inputs(X), self.likelihood.n_outputs(y)
        n_weights = x.shape[1]
        y = self.likelihood.targets(y, torch.zeros(len(y), n_outputs, dtype=torch.float64))

        def loss(parameters: Array) -> tuple[float, Array]:
            p = torch.tensor(parameters, requires_grad=True)
            value = -self.likelihood.log_prob(self._outputs(x, p, n_weights), y).mean()
            value = value + _PENALTY * p[1:n_weights].square().sum()
            value.backward()  # type: ignore[no-untyped-call]
            assert p.grad is not None
            return float(value.detach()), p.grad.numpy()

        start = np.zeros(n_weights + n_outputs - 1)
        start[0] = np.log(max(float(y[..., 0].mean()), 1e-3))
        self.parameters = torch.tensor(minimize(loss, start, jac=True, method="L-BFGS-B", options={"maxiter": 500}).x)
        self.n_weights = n_weights
        return self

    def predict(self, X: Array) -> Predictive:
        return self.likelihood.predictive(self._outputs(self._inputs(X), self.parameters, self.n_weights)[None])

    def _inputs(self, X: Array) -> Tensor:
        return torch.tensor(np.column_stack([np.ones(len(X)), (X - self.mean) / self.scale]))

    @staticmethod
    def _outputs(x: Tensor, p: Tensor, n_weights: int) -> Tensor:
        others = p[n_weights:].expand(len(x), -1)
        return torch.cat([(x @ p[:n_weights])[:, None], others], 1)


class Cox:
    """Proportional hazards: Breslow's partial likelihood and baseline."""

    def fit(self, X: Array, time: Array, is_over: NDArray[np.bool_]) -> Cox:
        self.mean, self.scale = X.mean(0), X.std(0) + 1e-12
        order = np.argsort(-time, kind="stable")
        x = torch.tensor(((X - self.mean) / self.scale)[order])
        over, t = torch.tensor(is_over[order]), time[order]
        last = torch.tensor(np.searchsorted(-t, -t, side="right") - 1)  # ties are at risk together

        def loss(parameters: Array) -> tuple[float, Array]:
            w = torch.tensor(parameters, requires_grad=True)
            risk = x @ w
            at_risk = torch.logcumsumexp(risk, 0)[last]
            value = -(risk - at_risk)[over].sum() / len(x) + _PENALTY * w.square().sum()
            value.backward()  # type: ignore[no-untyped-call]
            assert w.grad is not None
            return float(value.detach()), w.grad.numpy()

        self.weights = minimize(loss, np.zeros(X.shape[1]), jac=True, method="L-BFGS-B").x
        hazard = np.exp((X - self.mean) / self.scale @ self.weights)
        self.times = np.unique(time[is_over])
        steps = [(is_over & (time == t)).sum() / hazard[time >= t].sum() for t in self.times]
        self.cumulative = np.concatenate([[0.0], np.cumsum(steps)])
        return self

    def risk(self, X: Array) -> Array:
        found: Array = (X - self.mean) / self.scale @ self.weights
        return found

    def survival(self, X: Array, grid: Array) -> Array:
        baseline = self.cumulative[np.searchsorted(self.times, grid, side="right")]
        found: Array = np.exp(-np.exp(self.risk(X))[:, None] * baseline)
        return found


COUNT_MODELS: dict[str, Callable[[], Any]] = {
    "Poisson GLM": lambda: LinearModel(Poisson()),
    "negative binomial GLM": lambda: LinearModel(NegativeBinomial()),
}
