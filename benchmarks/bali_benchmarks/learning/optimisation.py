"""Optimisation of functions that cost much: a network in BoTorch's own acquisition, beside its Gaussian process."""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

import bali
from bali_benchmarks.learning.continual import Size
from bali_benchmarks.networks.task_networks import perceptron
from bali_benchmarks.performance.measurement import Line

#: First points, queries, and the largest value (of the negative function).
FUNCTIONS = {"branin": (5, 25), "hartmann6": (12, 48), "ackley10": (20, 60)}
#: A network is trained again after so many queries; between them its output layer takes in what was found.
_EVERY = 5


def optimisation(name: str, method: str, seed: int, size: Size) -> Iterator[Line]:
    """A line for each query: the best value so far, as regret."""
    from botorch.optim import optimize_acqf

    function, best = _function(name)
    n_first, n_queries = FUNCTIONS[name]
    effort: dict[str, Any] = {"num_restarts": 4, "raw_samples": 128, "options": {"maxiter": 50}}
    if size.rows is not None:
        n_queries, effort = 2, {"num_restarts": 2, "raw_samples": 8, "options": {"maxiter": 5}}
    bounds = torch.stack([torch.zeros(function.dim), torch.ones(function.dim)]).double()
    sobol = torch.quasirandom.SobolEngine(function.dim, scramble=True, seed=seed)  # type: ignore[no-untyped-call]
    x = sobol.draw(n_first).double()

    def value(x: Tensor) -> Tensor:
        low, high = function.bounds.double()
        return function(low + (high - low) * x)[:, None]

    y, state = value(x), dict[str, Any]()
    for query in range(n_queries + 1):
        yield {"evaluations": len(x), "regret": best - float(y.max()), "seconds": state.pop("seconds", 0.0)}
        if query == n_queries:
            return
        began = time.perf_counter()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            torch.manual_seed(1000 * seed + query)
            model = _process(x, y) if method == "process" else _network(x, y, seed, query, state, size)
            acquisition = _acquisition(model, x)
            candidate, _ = optimize_acqf(acquisition, bounds, q=1, **effort)
        state["seconds"] = time.perf_counter() - began
        x, y = torch.cat([x, candidate]), torch.cat([y, value(candidate)])


def _function(name: str) -> tuple[Any, float]:
    from botorch.test_functions import Ackley, Branin, Hartmann

    made = {
        "branin": lambda: (Branin(negate=True), -0.397887),
        "hartmann6": lambda: (Hartmann(negate=True), 3.32237),
        "ackley10": lambda: (Ackley(dim=10, negate=True, bounds=[(-32.768, 32.768)] * 10), 0.0),
    }
    function, best = made[name]()
    return function, best


def _acquisition(model: Any, x: Tensor) -> Any:
    from botorch.acquisition.logei import qLogNoisyExpectedImprovement
    from botorch.sampling import SobolQMCNormalSampler

    sampler = SobolQMCNormalSampler(torch.Size([64]), seed=0)
    return qLogNoisyExpectedImprovement(model, X_baseline=x, sampler=sampler, prune_baseline=True)


def _process(x: Tensor, y: Tensor) -> Any:
    from botorch.fit import fit_gpytorch_mll
    from botorch.models import SingleTaskGP
    from gpytorch.mlls import ExactMarginalLogLikelihood

    model = SingleTaskGP(x, y)
    fit_gpytorch_mll(ExactMarginalLogLikelihood(model.likelihood, model))
    return model


class Centred(nn.Module):
    """From the unit cube to columns of mean zero and deviation one."""

    def forward(self, x: Tensor) -> Tensor:
        return (x - 0.5) * math.sqrt(12.0)


def _network(x: Tensor, y: Tensor, seed: int, query: int, state: dict[str, Any], size: Size) -> Any:
    """Trained now and then; between that its output layer takes in what was found."""
    if query % _EVERY == 0:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed + query)
            module = nn.Sequential(Centred(), perceptron(x.shape[1], (50, 50), 1)).double()
        likelihood = bali.likelihoods.Gaussian()
        fitted = bali.fit(
            module, (x, y), likelihood, members=4, validation=0.2, seed=seed, epochs=size.epochs, verbose=False
        )
        state["model"] = fitted.output_regression(x, 32)
    else:
        state["model"] = state["model"].condition(x[-1:], y[-1:])
    return bali.BoTorchModel(state["model"])
