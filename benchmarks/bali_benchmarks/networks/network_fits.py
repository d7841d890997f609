"""The methods: each trains a task's network on its training and validation rows, and predicts."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

import bali
from bali.predictive.mixtures import ClassPredictive, Predictive, RegressionPredictive
from bali.training.fitted import Fitted
from bali.training.rules import Rules
from bali_benchmarks.networks.adam_search import AdamRun, AdamSettings, adam_run, best_of_rates, outputs
from bali_benchmarks.networks.network_tasks import NetworkTask
from bali_benchmarks.networks.task_rows import Rows

#: Weight samples of a prediction of `bali.fit`.
SAMPLES = 32
ENSEMBLE = 5


@dataclass(frozen=True)
class FitPlan:
    """How much of a task is done; a quick one is for a look."""

    rows: int | None = None  # at most so many of each part
    epochs: int | None = None
    most_scores: int | None = None  # of Adam

    @property
    def is_quick(self) -> bool:
        return self != FitPlan()


QUICK = FitPlan(rows=300, epochs=4, most_scores=2)


@dataclass(frozen=True)
class Seconds:
    """Of a training: by the clock, which tells what else the machine had to do, and of the processor, which does not."""

    clock: float
    processor: float


def stopwatch() -> Callable[[], Seconds]:
    clock, processor = time.perf_counter(), time.process_time()
    return lambda: Seconds(time.perf_counter() - clock, time.process_time() - processor)


@dataclass(frozen=True)
class TrainedNetwork:
    predict: Callable[[Tensor], Predictive]
    seconds: Seconds
    steps: int
    validation_nll: float
    details: dict[str, Any] = field(default_factory=dict)


def by_bali(task: NetworkTask, rows: Rows, seed: int, plan: FitPlan) -> TrainedNetwork:
    return trained_by_bali(*fitted_network(task, rows, seed, plan))


def fitted_network(
    task: NetworkTask, rows: Rows, seed: int, plan: FitPlan, rules: Rules | None = None
) -> tuple[Fitted, Seconds]:
    network = task.network(seed)
    likelihood = bali.likelihoods.Gaussian() if task.is_regression else bali.likelihoods.Categorical()
    elapsed = stopwatch()
    fitted = bali.fit(
        network,
        rows.train,
        likelihood,
        validation=rows.validation,
        epochs=plan.epochs,
        seed=seed,
        verbose=False,
        rules=rules,
    )
    return fitted, elapsed()


def trained_by_bali(fitted: Fitted, seconds: Seconds) -> TrainedNetwork:
    score = min(score for _, score in fitted.history.scores[0])
    calibration = fitted.calibration
    details = {"width": calibration.width, "temperature": calibration.temperature, "outcome": fitted.history.outcomes[0]}
    steps = len(fitted.history.losses[0])
    return TrainedNetwork(lambda x: fitted.predict(x, SAMPLES), seconds, steps, score, details)


def by_adam(task: NetworkTask, rows: Rows, seed: int, plan: FitPlan) -> TrainedNetwork:
    """Its seconds are those of all three rates."""
    settings = AdamSettings(task.batch, task.is_regression, seed, plan.most_scores)
    elapsed = stopwatch()
    best, steps = best_of_rates(lambda: task.network(seed), rows.train, rows.validation, settings)
    seconds = elapsed()
    details = {"rate": best.rate, "decay": best.decay, "best_step": best.best_step, "steps_of_rate": best.steps}
    return TrainedNetwork(_predicting([best.network], rows, task), seconds, steps, best.score, details)


def by_ensemble(task: NetworkTask, rows: Rows, seed: int, plan: FitPlan, rate: float) -> TrainedNetwork:
    """Five of Adam's networks with the rate that was the best for the first; its seconds have no search in them."""
    elapsed, runs = stopwatch(), list[AdamRun]()
    for member in range(ENSEMBLE):
        own = seed + 100 * member
        settings = AdamSettings(task.batch, task.is_regression, own, plan.most_scores)
        runs.append(adam_run(task.network(own), rows.train, rows.validation, rate, settings))
    seconds = elapsed()
    predict = _predicting([run.network for run in runs], rows, task)
    score = -float(predict(rows.validation[0]).log_prob(_flat(rows.validation[1], task)).mean())
    return TrainedNetwork(predict, seconds, sum(run.steps for run in runs), score, {"rate": rate})


def _predicting(networks: list[nn.Module], rows: Rows, task: NetworkTask) -> Callable[[Tensor], Predictive]:
    """The mixture of the networks; each one's noise is that of the validation rows."""

    def stacked(x: Tensor) -> Tensor:
        z = torch.stack([outputs(network, x) for network in networks])
        return z.reshape(len(z), -1, z.shape[-1])

    if not task.is_regression:
        return lambda x: ClassPredictive(stacked(x).softmax(-1))
    noise = (rows.validation[1] - stacked(rows.validation[0])).square().mean(1)
    return lambda x: RegressionPredictive(stacked(x), torch.diag_embed(noise))


def _flat(y: Tensor, task: NetworkTask) -> Tensor:
    return y if task.is_regression else y.reshape(-1)
