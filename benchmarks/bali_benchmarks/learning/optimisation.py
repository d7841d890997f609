"""Optimisation of functions that cost much: a network in BoTorch's own acquisition, beside its Gaussian process."""

from __future__ import annotations

import time
import warnings
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

import bali
from bali_benchmarks.learning.continual import Size
from bali_benchmarks.performance.measurement import Line

#: First points, queries, and the largest value (of the negative function).
FUNCTIONS = {"branin": (5, 25), "hartmann6": (12, 48), "ackley10": (20, 60)}
#: A network is made anew when it has this share of rows more; between that its output layer takes in what was found. Scales
#: that evidence sets from ten rows hardly move with one more.
_SHARE = 0.1


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
            model = _process(x, y) if method == "process" else _network(x, y, seed, state)
            acquisition = _acquisition(model, y)
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


def _acquisition(model: Any, y: Tensor) -> Any:
    """Values have no noise, so that the best one so far is known."""
    from botorch.acquisition.analytic import LogExpectedImprovement

    return LogExpectedImprovement(model, best_f=y.max())


def _process(x: Tensor, y: Tensor) -> Any:
    from botorch.fit import fit_gpytorch_mll
    from botorch.models import SingleTaskGP
    from gpytorch.mlls import ExactMarginalLogLikelihood

    model = SingleTaskGP(x, y)
    fit_gpytorch_mll(ExactMarginalLogLikelihood(model.likelihood, model))
    return model


def _network(x: Tensor, y: Tensor, seed: int, state: dict[str, Any]) -> Any:
    """Made anew now and then; between that its output layer takes in what was found."""
    if len(x) >= (1.0 + _SHARE) * state.get("rows", 0):
        unit_cube = torch.stack([torch.zeros_like(x[0]), torch.ones_like(x[0])])
        state["model"], state["rows"] = bali.surrogate(x, y, bounds=unit_cube, seed=seed), len(x)
    else:
        state["model"] = state["model"].condition(x[-1:], y[-1:])
    return bali.BoTorchModel(state["model"])
