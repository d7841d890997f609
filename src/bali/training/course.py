"""The training loop of `bali.fit`: steps, scores of held-out examples, phases with ever smaller steps, the best point.

A phase goes on while the averaged means gain on the held-out examples. The next one starts from the best point so far, with
smaller steps; training ends when a phase gains nothing, or after the last one.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import torch
from torch import Tensor

from bali.conjugate import linalg
from bali.conjugate.linalg import NumericalError
from bali.inference.distributed import Group
from bali.inference.inputs import call
from bali.inference.joint import JointLayer, advance, needs_statistics, take_in
from bali.inference.joint_pass import Link, joint_pass
from bali.inference.network import Network
from bali.predictive.likelihoods import Likelihood
from bali.training.averaging import AveragedPoints, Point, batch_norms, load_point
from bali.training.continued import penalty
from bali.training.examples import Examples
from bali.training.rules import Rules, steps_between_scores

Outcome = Literal["converged", "epochs", "interrupted"]
#: Examples of one pass that needs no gradients.
_AT_ONCE = 1024
#: Examples that running statistics of batch norms are taken from.
_FOR_STATISTICS = 2048


@dataclass(frozen=True)
class Job:
    """What is trained on what, and stays the same throughout."""

    network: Network
    likelihood: Likelihood
    link: Link
    examples: Examples
    held_out: Examples
    batch_size: int
    max_steps: int | None
    seed: int
    rules: Rules
    device: torch.device
    group: Group | None = None  # of the processes that train together, each of which has all the data
    observations: int = 1  # of an example: one for each position of a sequence or an image


@dataclass
class Course:
    """How far a training is: everything that a resumed run needs."""

    layers: dict[str, JointLayer]
    optimizer: torch.optim.Optimizer | None
    noise: Tensor | None  # covariance of a regression's noise
    step: int = 0
    phase: int = 0
    waited: int = 0  # steps without a gain
    phase_start: float = math.inf  # the best score when the phase began
    averages: AveragedPoints = field(default_factory=AveragedPoints)
    best: Point | None = None
    best_score: float = math.inf  # mean negative log-likelihood of the held-out examples
    best_noise: Tensor | None = None
    scores: list[tuple[int, float]] = field(default_factory=list)  # by step
    losses: list[float] = field(default_factory=list)  # −log-likelihood of each batch
    refused: int = 0  # steps that were not taken

    def point(self, network: Network) -> Point:
        others = {name: parameter.detach() for name, parameter in network.others.items()}
        return {name: layer.mean for name, layer in self.layers.items()} | others


def start(job: Job, prior_about_weights: bool) -> Course:
    """Before the first step, at the module's own weights, in training mode."""
    job.network.train()
    layers = {}
    for name, layer in job.network.layers.items():
        weights = layer.weights()
        variance = job.rules.prior_variance_of(layer)
        about = weights.clone() if prior_about_weights else None
        layers[name] = JointLayer(weights, about, variance, f"layer '{name}': inputs", layer.step_share**0.5)
    parameters = list(job.network.others.values())
    optimizer = torch.optim.Adam(parameters, lr=job.rules.others_rate) if parameters else None
    noise = None
    if job.likelihood.has_true_targets:
        _, y = job.examples.take(torch.arange(1))
        d = y.shape[-1] if y.dim() > 1 else 1
        noise = torch.eye(d, dtype=torch.float64, device=job.device)
    return Course(layers, optimizer, noise)


def run(job: Job, course: Course, on_score: Callable[[Job, Course], None]) -> Outcome:
    """Train on from where the course is; it is changed in place. `on_score` is told after every score."""
    between = steps_between_scores(len(job.examples), job.batch_size)
    try:
        while job.max_steps is None or course.step < job.max_steps:
            one_step(job, course)
            if course.step % between == 0 or course.step == job.max_steps:
                over = _score(job, course)
                on_score(job, course)
                if over:
                    return "converged"
    except KeyboardInterrupt:
        if course.best is None:
            raise
        return "interrupted"
    return "epochs"


def batch_index(job: Job, step: int) -> Tensor:
    """The examples of a step, counted from 0: shuffled epochs, of which a last batch that is half empty is left out."""
    n, size = len(job.examples), min(job.batch_size, len(job.examples))
    per_epoch = max(1, n // size + (n % size >= size / 2 and n % size > 0))
    epoch, number = divmod(step, per_epoch)
    return _order(n, job.seed * 1_000_003 + epoch)[number * size : (number + 1) * size]


@functools.lru_cache(maxsize=1)
def _order(n: int, seed: int) -> Tensor:
    return torch.randperm(n, generator=torch.Generator().manual_seed(seed))


def one_step(job: Job, course: Course) -> None:
    network, rules = job.network, job.rules
    index, group = batch_index(job, course.step), job.group
    if group is not None:  # every process takes its part of the batch
        index = index[len(index) * group.rank // group.size : len(index) * (group.rank + 1) // group.size]
    x, y = job.examples.take(index)
    pace = rules.pace(len(course.layers), course.phase, course.step, job.observations)
    network.assign({name: layer.mean for name, layer in course.layers.items()})
    factor = None if course.noise is None else linalg.cholesky(course.noise, "noise of the observations").to(y.dtype)
    course.step += 1
    sample = course.step if needs_statistics(course.step) else None
    seen = joint_pass(network, job.likelihood, job.link, x, y, factor, sample)
    if group is not None:
        seen = seen.summed(group)
    course.losses.append(-seen.log_likelihood)
    with torch.no_grad():
        layers = {
            name: take_in(layer, seen.sums[name], seen.n_examples, course.step, pace)
            for name, layer in course.layers.items()
        }
        course.layers, share = advance(layers, len(job.examples), pace)
        course.refused += share == 0.0
        if seen.squared_residual is not None and course.best is None:
            assert course.noise is not None
            course.noise = course.noise.lerp(seen.squared_residual, max(rules.rate, 1.0 / course.step))
    if course.optimizer is not None:
        for settings in course.optimizer.param_groups:
            settings["lr"] = rules.others_rate * rules.fall**course.phase
        for parameter, gradient in zip(network.others.values(), seen.of_others, strict=True):
            parameter.grad = None if gradient is None else -gradient
        course.optimizer.step()
        course.optimizer.zero_grad()
    course.averages.take_in(course.point(network))


def _score(job: Job, course: Course) -> bool:
    """Score the averages, keep the better one if it is the best so far. Returns whether training is over."""
    rules, network = job.rules, job.network
    here = {name: value.clone() for name, value in course.point(network).items()}
    found = []
    for point in course.averages.points:
        load_point(network, point)
        refresh_statistics(job)
        score, noise = held_out_score(job)
        found.append((score + penalty(course.layers, point) / job.observations, noise, point))
    load_point(network, here)
    score, noise, point = min(found, key=lambda f: f[0])
    course.scores.append((course.step, score))
    if not math.isfinite(score) and course.best is None:
        raise NumericalError("the held-out log-likelihood is not finite after the first steps: look for extreme values in x")
    course.waited += course.step - (course.scores[-2][0] if len(course.scores) > 1 else 0)
    if score < course.best_score - rules.least_gain:
        course.waited = 0
    if score < course.best_score:
        course.best_score, course.best_noise = score, noise
        course.best = {name: value.clone() for name, value in point.items()}
    if noise is not None:
        course.noise = course.best_noise
    if course.waited >= patience(job, course):
        return _next_phase(job, course)
    return False


def patience(job: Job, course: Course) -> int:
    """Steps without a gain that end a phase."""
    of_example = sum(layer.mean.numel() * layer.rows_per_example for layer in course.layers.values())
    return job.rules.patience_for(job.batch_size * of_example)


def _next_phase(job: Job, course: Course) -> bool:
    gained = course.best_score < course.phase_start - job.rules.least_gain
    if course.phase + 1 == job.rules.phases or (course.phase > 0 and not gained):
        return True
    assert course.best is not None
    course.phase, course.waited, course.phase_start = course.phase + 1, 0, course.best_score
    load_point(job.network, course.best)
    course.layers = {
        name: replace(layer, mean=course.best[name].clone(), drive=None) for name, layer in course.layers.items()
    }
    course.averages = AveragedPoints()
    return False


def held_out_score(job: Job) -> tuple[float, Tensor | None]:
    """Mean negative log-likelihood of the held-out examples at the module's weights; a regression's noise is their own."""
    total, rows, squares = 0.0, 0, None
    for z, y in outputs(job, job.held_out):
        y = job.likelihood.targets(y, z)
        rows += z[..., 0].numel()
        if job.likelihood.has_true_targets:
            residual = (y - z).reshape(-1, z.shape[-1]).double()
            product = residual.mT @ residual
            squares = product if squares is None else squares + product
        else:
            total -= float(job.likelihood.evaluate(z, y, None)[0].double().sum())
    if squares is None:
        return total / rows, None
    d = len(squares)
    noise = squares / rows + 1e-10 * torch.eye(d, dtype=torch.float64, device=squares.device)
    logdet = linalg.logdet(linalg.cholesky(noise, "noise of the observations"))
    return 0.5 * (d * math.log(2 * math.pi) + float(logdet) + d), noise


@torch.no_grad()
def outputs(job: Job, examples: Examples) -> list[tuple[Tensor, Tensor]]:
    """(z, y) of all examples at the module's weights, in evaluation mode."""
    network = job.network
    network.module.eval()
    found = []
    for start in range(0, len(examples), _AT_ONCE):
        index = torch.arange(start, min(start + _AT_ONCE, len(examples)))
        x, y = examples.take(index)
        found.append((job.link(network.plain_output(x)), y))
    network.train()
    return found


@torch.no_grad()
def refresh_statistics(job: Job) -> None:
    """Running statistics of batch norms are those of the weights that the module now has."""
    job.network.train()
    norms = batch_norms(job.network.module)
    if not norms:
        return
    kept = [norm.momentum for norm in norms]
    for norm in norms:
        norm.reset_running_stats()
        norm.momentum = None  # the plain mean of all batches
    size, n = max(job.batch_size, 256), min(len(job.examples), _FOR_STATISTICS)
    for start in range(0, n, size):
        call(job.network.module, job.examples.take(torch.arange(start, min(start + size, n)))[0])
    for norm, momentum in zip(norms, kept, strict=True):
        norm.momentum = momentum


def summary(course: Course) -> dict[str, Any]:
    """The numbers of a course that are no tensors."""
    return {
        "step": course.step,
        "phase": course.phase,
        "waited": course.waited,
        "phase_start": course.phase_start,
        "best_score": course.best_score,
        "count": course.averages.count,
        "scores": course.scores,
        "losses": course.losses,
        "refused": course.refused,
        "rows_per_example": {name: layer.rows_per_example for name, layer in course.layers.items()},
    }
