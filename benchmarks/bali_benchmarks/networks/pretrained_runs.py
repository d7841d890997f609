"""A posterior around a network that was trained by somebody else: `bali.fit(..., epochs=0)` beside laplace-torch.

Both get one network of Adam's and its training rows, and leave its weights as they are; each sets its own width.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import bali
from bali.predictive.mixtures import ClassPredictive, Predictive, RegressionPredictive
from bali_benchmarks.lines import append_line, read_lines
from bali_benchmarks.networks import pretrained_page
from bali_benchmarks.networks.adam_search import AdamSettings, adam_run, outputs
from bali_benchmarks.networks.network_fits import FitPlan
from bali_benchmarks.networks.network_scores import scores
from bali_benchmarks.networks.network_tasks import TASKS, NetworkTask
from bali_benchmarks.networks.task_rows import Rows
from bali_benchmarks.performance.measurement import Line
from bali_benchmarks.performance.peer_trainings import peer
from bali_benchmarks.performance.performance_runs import rounded

#: Tasks whose network ends in its last linear layer.
USUAL = ("energy", "mlp")
METHODS = ("network", "bali-last", "bali-all", "laplace-last", "laplace-all")
RATE = 1e-3
SAMPLES = 32
_AT_ONCE = 500

Predict = Callable[[Tensor], Predictive]


def run(
    out: Path,
    page: Path,
    *,
    tasks: Sequence[str] = USUAL,
    methods: Sequence[str] = METHODS,
    seeds: int = 1,
    plan: FitPlan = FitPlan(),  # noqa: B008 (frozen)
) -> list[Line]:
    """Run what is not in the file yet and write the page from all its lines; a network is trained once for all methods."""
    lines = read_lines(out)
    for task, seed in ((task, seed) for seed in range(seeds) for task in tasks):
        keys: list[dict[str, Any]] = [{"task": task, "seed": seed, "method": method} for method in methods]
        left = [key for key in keys if not any(key.items() <= line.items() for line in lines)]
        if left:
            trained = pretrained(TASKS[task], seed, plan)
            for key in left:
                lines.append(append_line(out, key | rounded(measure(TASKS[task], key["method"], seed, *trained))))
    page.parent.mkdir(parents=True, exist_ok=True)
    page.write_text(pretrained_page.to_markdown(lines), encoding="utf-8")
    return lines


def pretrained(task: NetworkTask, seed: int, plan: FitPlan) -> tuple[nn.Module, Rows]:
    rows = task.rows(seed)
    rows = rows if plan.rows is None else rows.first(plan.rows)
    settings = AdamSettings(task.batch, task.is_regression, seed, plan.most_scores)
    return adam_run(task.network(seed), rows.train, rows.validation, RATE, settings).network, rows


def measure(task: NetworkTask, method: str, seed: int, network: nn.Module, rows: Rows) -> Line:
    """Scores of one way to predict with the network; seconds are those of its posterior."""
    who, _, which = method.partition("-")
    start = time.perf_counter()
    if who == "network":
        predict = _plain(network, rows, is_regression=task.is_regression)
    else:
        make = _by_bali if who == "bali" else _by_laplace
        predict = make(network, rows, which, seed, is_regression=task.is_regression)
    seconds = time.perf_counter() - start
    start = time.perf_counter()
    found: dict[str, Any] = scores(predict, rows)
    return {
        **found,
        "seconds": seconds,
        "prediction_seconds": time.perf_counter() - start,
        "threads": torch.get_num_threads(),
    }


def _noise(network: nn.Module, rows: Rows) -> Tensor:
    """Variance of the validation rows about the network, (1, D, D) with a diagonal."""
    x, y = rows.validation
    return torch.diag_embed((y - outputs(network, x)).square().mean(0))[None]


def _plain(network: nn.Module, rows: Rows, *, is_regression: bool) -> Predict:
    if is_regression:
        noise = _noise(network, rows)
        return lambda x: RegressionPredictive(outputs(network, x)[None], noise)
    return lambda x: ClassPredictive(outputs(network, x).softmax(-1)[None])


def _by_bali(network: nn.Module, rows: Rows, which: str, seed: int, *, is_regression: bool) -> Predict:
    likelihood = bali.likelihoods.Gaussian() if is_regression else bali.likelihoods.Categorical()
    last = [name for name, module in network.named_modules() if isinstance(module, nn.Linear)][-1]
    only = [last] if which == "last" else None
    options: dict[str, Any] = {"validation": rows.validation, "only": only, "epochs": 0, "seed": seed, "verbose": False}
    fitted = bali.fit(network, rows.train, likelihood, **options)
    return lambda x: fitted.predict(x, SAMPLES)


def _by_laplace(network: nn.Module, rows: Rows, which: str, seed: int, *, is_regression: bool) -> Predict:
    """Kronecker factors; the prior's precision maximises the marginal likelihood, as the package proposes."""
    noise = _noise(network, rows) if is_regression else None
    options: dict[str, Any] = {} if noise is None else {"sigma_noise": float(noise[0].diagonal().mean().sqrt())}
    subset = "last_layer" if which == "last" else "all"
    kind = "regression" if is_regression else "classification"
    torch.manual_seed(seed)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the package's own
        posterior = peer("laplace").Laplace(network, kind, subset_of_weights=subset, hessian_structure="kron", **options)
        posterior.fit(DataLoader(TensorDataset(*rows.train), batch_size=_AT_ONCE))
        posterior.optimize_prior_precision(method="marglik")

    def classes(x: Tensor) -> Tensor:
        if which == "last":
            return posterior(x, pred_type="glm", link_approx="probit").detach()[None]
        # Linearised, all layers would take a Jacobian of every weight for each row.
        return posterior.predictive_samples(x, pred_type="nn", n_samples=SAMPLES).detach()

    def predict(x: Tensor) -> Predictive:
        parts = torch.split(x, _AT_ONCE)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            if noise is None:
                return ClassPredictive(torch.cat([classes(part) for part in parts], 1))
            found = [posterior(part, pred_type="glm") for part in parts]
        mean, variance = (torch.cat([f[i].detach() for f in found]) for i in (0, 1))
        inflation = 1.0 + variance.reshape(len(x)) / noise[0, 0, 0]
        return RegressionPredictive(mean[None], noise, inflation[None])

    return predict
