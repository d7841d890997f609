"""The training loop of the estimators: steps, validation, stopping at the best posterior."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor

from bali.inference import LayerwiseInference

Outcome = Literal["converged", "max_iter", "interrupted"]


@dataclass
class Progress:
    """What a progress bar can show; handed to `on_step` now and then."""

    step: int
    max_steps: int
    log_likelihood: float
    validation_score: float | None


@dataclass
class History:
    outcome: Outcome = "max_iter"
    best_step: int = 0
    loss_curve: list[float] = field(default_factory=list)  # −log-likelihood of each batch
    validation_steps: list[int] = field(default_factory=list)
    validation_scores: list[float] = field(default_factory=list)  # log-likelihood of the held-out rows


@dataclass(frozen=True)
class Plan:
    """How long and how to train. The moving-average rate falls by `decay` whenever validation stops improving."""

    max_steps: int
    batch_size: int
    ema_rate: float
    decay: float = 0.2
    n_decays: int = 2
    check_every: int = 25
    patience: int = 6
    validation_samples: int = 8
    tolerance: float = 1e-3


def train(
    inference: LayerwiseInference,
    x: Tensor,
    y: Tensor,
    weight: Tensor,
    held_out: Tensor | None,
    plan: Plan,
    generator: torch.Generator,
    on_step: Callable[[Progress], None] | None = None,
) -> History:
    """Train stacked members on rows x (n, d) and leave `inference` at the posterior with the best validation score.

    `weight` (n,) are sample weights, `held_out` (K, n) marks each member's validation rows. Ctrl-C ends the training
    early, with the best posterior so far.
    """
    history = History()
    train_weight = weight if held_out is None else weight * ~held_out
    watch = Watch(plan)
    best: dict[str, Any] | None = None
    rate, score = plan.ema_rate, None
    try:
        for step, rows in enumerate(_batches(len(x), plan, x.device, generator), start=1):
            batch = (x, y, train_weight) if rows is None else (x[rows], y[rows], train_weight[..., rows])
            log_likelihood = float(inference.step(batch[0], batch[1], rate, batch[2]).mean())
            history.loss_curve.append(-log_likelihood)
            if held_out is not None and (step % plan.check_every == 0 or step == plan.max_steps):
                score = validation_score(inference, x, y, weight, held_out, plan.validation_samples)
                history.validation_steps.append(step)
                history.validation_scores.append(score)
                verdict = watch.see(score)
                if verdict == "best":
                    best, history.best_step = inference.state_dict(), step
                elif verdict == "stalled":
                    if watch.stalls > plan.n_decays:
                        history.outcome = "converged"
                        break
                    rate *= plan.decay
            if on_step is not None:
                on_step(Progress(step, plan.max_steps, log_likelihood, score))
    except KeyboardInterrupt:
        if inference.steps == 0:
            raise
        history.outcome = "interrupted"
    if best is not None:
        inference.load_state_dict(best)
    else:
        history.best_step = len(history.loss_curve)
    return history


class Watch:
    """Tells a new best score from a stall: `patience` scores in a row without an improvement of `tolerance`."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.best, self.reference = -float("inf"), -float("inf")
        self.waited = self.stalls = 0

    def see(self, score: float) -> Literal["best", "worse", "stalled"]:
        improved = score > self.best
        self.best = max(self.best, score)
        if score > self.reference + self.plan.tolerance:
            self.reference, self.waited = score, 0
        else:
            self.waited += 1
        if improved:
            return "best"
        if self.waited >= self.plan.patience:
            self.waited = 0
            self.stalls += 1
            return "stalled"
        return "worse"


def _batches(n: int, plan: Plan, device: torch.device, generator: torch.Generator) -> Iterator[Tensor | None]:
    """Row numbers of each step's batch: shuffled epochs, or None for all rows."""
    done = 0
    while done < plan.max_steps:
        if n <= plan.batch_size:
            yield None
            done += 1
            continue
        order = torch.randperm(n, generator=generator, device=device)
        for start in range(0, n - plan.batch_size + 1, plan.batch_size):
            if done == plan.max_steps:
                return
            yield order[start : start + plan.batch_size]
            done += 1


def validation_score(
    inference: LayerwiseInference, x: Tensor, y: Tensor, weight: Tensor, held_out: Tensor, n_samples: int
) -> float:
    """Mean log-likelihood of the rows that each member has not seen, each member predicting its own."""
    rows = (held_out & (weight > 0)).any(0)
    predictive = inference.predict(x[rows], n_samples)
    components = predictive.component_log_prob(y[rows])
    components = components.reshape(n_samples, -1, components.shape[-1])  # (S, K, n)
    by_member = components.logsumexp(0) - math.log(n_samples)
    counted = held_out[:, rows] * weight[rows]
    return float((by_member * counted).sum() / counted.sum())
