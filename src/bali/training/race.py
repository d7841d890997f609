"""The training loop of the estimators: steps, validation, a race between settings, the best posterior at the end.

Stacked members are C candidate settings × F folds (candidates outer). Each fold of a candidate holds out its own rows, so
that a candidate's score is over all held-out rows and candidates are compared on the same ones.

Candidates run side by side, from the strongest prior to the weakest. Those that stopped improving leave the stack for the
rest of a phase, and so do those that are far behind, but for weaker priors in early phases, which learn more slowly. At
the end of a phase candidates that are clearly worse than the best are out; the others go on from their best points, with
smaller steps and slower moving averages, and are mixed in the end: which of them is better cannot be told from the data.

Scores are those of averaged means, and it is these that are kept: large steps then show what they have learnt, beneath the
noise that they make.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Literal

import torch
from torch import Tensor

from bali.inference.layerwise import LayerwiseInference
from bali.inference.members import concatenate, take_members
from bali.inference.prediction import NetworkPosterior
from bali.inference.state import State
from bali.training.averaging import AveragedMeans
from bali.training.calibration import calibrated_scores
from bali.training.held_out import predict_held_out
from bali.training.plan import Plan

#: Phases are early while the step size is at least this share of what it was at the start.
EARLY = 0.5

Outcome = Literal["converged", "max_iter", "interrupted"]


@dataclass
class Progress:
    """What a progress bar can show."""

    step: int
    max_steps: int
    log_likelihood: float
    validation_score: float | None


@dataclass
class History:
    outcome: Outcome = "max_iter"
    chosen: list[int] = field(default_factory=list)  # the candidates that were kept
    best_step: int = 0
    loss_curve: list[float] = field(default_factory=list)  # −log-likelihood of each batch, mean over members
    validation_steps: list[int] = field(default_factory=list)
    validation_scores: list[float] = field(default_factory=list)  # of the best candidate at that step


@dataclass
class Candidate:
    """One setting in the race: where it stood when it was best, and how long it has not improved."""

    number: int
    score: float = -math.inf
    row_scores: Tensor | None = None  # whose mean is the score
    step: int = 0
    state: State | None = None
    reference: float = -math.inf
    waited: int = 0  # checks without an improvement
    trailed: int = 0  # checks in a row at which it was far behind the best

    def see(self, score: float, tolerance: float) -> bool:
        """Take in a score; whether it is the best so far."""
        if score > self.reference + tolerance:
            self.reference, self.waited = score, 0
        else:
            self.waited += 1
        return score > self.score


class Race:
    """The candidates still running, as one stack."""

    def __init__(self, inference: LayerwiseInference, n_candidates: int, plan: Plan) -> None:
        self.whole, self.plan = inference, plan
        self.n_folds = (inference.setup.network.members or 1) // n_candidates
        self.candidates = [Candidate(c) for c in range(n_candidates)]
        self.running = list(self.candidates)
        self.step_size = float(inference.setup.settings.step_size)  # of the first phase
        self.phase = 1
        self._run(inference)

    def _run(self, inference: LayerwiseInference, averaged: AveragedMeans | None = None) -> None:
        self.inference = inference
        self.averaged = AveragedMeans(inference, self.plan.averaging) if averaged is None else averaged

    @property
    def state(self) -> State:
        """What is scored and kept."""
        return self.averaged.state() if self.averaged.steps else self.inference.state

    @property
    def posterior(self) -> NetworkPosterior:
        return self.inference.posterior_of(self.state)

    @property
    def best(self) -> Candidate:
        return max(self.candidates, key=lambda c: c.score)

    @property
    def decay(self) -> float:
        """What is left of step size and moving-average rate."""
        return self.plan.decay ** (self.phase - 1)

    @property
    def is_early(self) -> bool:
        """While steps are large, weaker priors may still catch up."""
        return self.decay >= EARLY

    def step(self, number: int, x: Tensor, y: Tensor, weight: Tensor | None) -> float:
        """One step of all that are running, counted from 1; the mean log-likelihood of its rows.

        The step size grows at first: where it becomes too large for the table, scores stop growing, and the next phase
        starts from the best point before. Rate and momentum together never move a mean by more than one whole step.
        """
        rate = self.plan.ema_rate * self.decay
        warm = number / max(number, self.plan.warm_up * self.plan.max_steps)
        momentum = min(self.plan.momentum, 1.0 - rate)
        size = self.step_size * self.decay * warm
        log_likelihood = self.inference.step(x, y, rate, weight, step_size=size, momentum=momentum)
        self.averaged.update()
        return float(log_likelihood.mean())

    def _members(self, places: list[int]) -> list[int]:
        return [place * self.n_folds + fold for place in places for fold in range(self.n_folds)]

    def check(self, scores: Tensor, row_weight: Tensor, step: int) -> bool:
        """Take in the row scores (C, n) of the running candidates. Returns whether the race is over."""
        self.row_weight = row_weight
        means = (scores * row_weight).sum(-1) / row_weight.sum()
        for place, (candidate, score) in enumerate(zip(self.running, means.tolist(), strict=True)):
            if candidate.see(score, self.plan.tolerance):
                candidate.score, candidate.row_scores, candidate.step = score, scores[place], step
                n_members = len(self.running) * self.n_folds
                candidate.state = take_members(self.state, n_members, self._members([place]))
            candidate.trailed = candidate.trailed + 1 if self._is_out(candidate) else 0
        patience = self.plan.patience
        going = [place for place, c in enumerate(self.running) if c.waited < patience and c.trailed < patience]
        ends = self.plan.phase_ends
        late = self.phase <= len(ends) and step >= ends[self.phase - 1] * self.plan.max_steps
        if not going or (late and step < self.plan.max_steps):
            return self._next_phase()
        if len(going) < len(self.running):
            members = self._members(going)
            taken = self.inference.take_members(members)
            self._run(taken, self.averaged.of_members(taken, members))
            self.running = [self.running[place] for place in going]
        return False

    def _next_phase(self) -> bool:
        if self.phase > len(self.plan.phase_ends):
            return True
        self.phase += 1
        self.candidates = [c for c in self.candidates if not (self._is_out(c) if self.is_early else self._is_behind(c, 1.0))]
        self._run(self._best_points())
        self.running = list(self.candidates)
        for candidate in self.running:
            candidate.waited = 0
        return False

    def _is_out(self, candidate: Candidate) -> bool:
        """Whether it is far behind. Early on that may only mean to be slower, if its prior is weaker than that of the best:
        such candidates often end ahead. Priors weaken with the number of the candidate."""
        may_catch_up = self.is_early and candidate.number > self.best.number
        return not may_catch_up and self._is_behind(candidate, 2.0)

    def _is_behind(self, candidate: Candidate, n_errors: float) -> bool:
        """Whether it is worse than the best by so many standard errors of the row-by-row difference."""
        assert candidate.row_scores is not None
        assert self.best.row_scores is not None
        share = self.row_weight / self.row_weight.sum()
        gap = self.best.row_scores - candidate.row_scores
        mean = (gap * share).sum()
        error = ((gap - mean).square() * share.square()).sum().sqrt()
        return bool(mean > n_errors * error)

    def at_best(self) -> LayerwiseInference:
        """Drops candidates that are clearly worse; the members of the others, each where its candidate scored best.

        Where nothing has been scored, everything stays as it is.
        """
        if self.best.state is None:
            self.inference.state = self.state
            return self.inference
        self.candidates = [c for c in self.candidates if not self._is_behind(c, 1.0)]
        return self._best_points()

    def _best_points(self) -> LayerwiseInference:
        states = [c.state for c in self.candidates if c.state is not None]
        inference = self.whole.take_members(self._members([c.number for c in self.candidates]))
        generator = self.inference.state.generator  # shared by all: it goes on, and is not wound back
        inference.state = replace(concatenate(states), generator=generator)
        inference.assign()
        return inference


def train(
    inference: LayerwiseInference,
    n_candidates: int,
    x: Tensor,
    y: Tensor,
    weight: Tensor,
    held_out: Tensor | None,
    plan: Plan,
    generator: torch.Generator,
    on_step: Callable[[Progress], None] | None = None,
) -> tuple[LayerwiseInference, History]:
    """Train on rows x (n, d); returns the members that were kept, at their best, and what happened.

    `weight` (n,) are sample weights, `held_out` (F, n) marks each fold's validation rows. Ctrl-C ends the training early,
    with the best posterior so far; before the first check there is none that is worth keeping, and it is raised.
    """
    history = History()
    race = Race(inference, n_candidates, plan)
    fold_weight = weight.expand(race.n_folds, -1) if held_out is None else weight * ~held_out
    score = None
    try:
        for step, batch in enumerate(_batches(x, y, fold_weight, plan, generator), start=1):
            rows, targets, row_weight = _for_candidates(batch, len(race.running))
            log_likelihood = race.step(step, rows, targets, row_weight)
            history.loss_curve.append(-log_likelihood)
            if held_out is not None and plan.checks_at(step):
                scores, score_weight = validation_scores(race.posterior, x, y, weight, held_out, plan.n_samples)
                over = race.check(scores, score_weight, step)
                score = float((scores * score_weight).sum(-1).max() / score_weight.sum())
                history.validation_steps.append(step)
                history.validation_scores.append(score)
                if over:
                    history.outcome = "converged"
                    break
            if on_step is not None:
                on_step(Progress(step, plan.max_steps, log_likelihood, score))
    except KeyboardInterrupt:
        checked = race.best.step if held_out is not None else any(map(plan.checks_at, range(1, len(history.loss_curve) + 1)))
        if not checked:
            raise
        history.outcome = "interrupted"
    if history.outcome == "max_iter" and not _still_improves(history, plan):
        history.outcome = "converged"
    best = race.at_best()
    _come_to_rest(best)
    history.chosen = [c.number for c in race.candidates]
    history.best_step = race.best.step or len(history.loss_curve)
    return best, history


def _come_to_rest(inference: LayerwiseInference) -> None:
    """The course of the training ends with it: what is kept, saved or taken further by a stream knows nothing of it."""
    state = inference.state
    inference.state = replace(state, layers={name: replace(la, velocity=None) for name, la in state.layers.items()})


def _still_improves(history: History, plan: Plan) -> bool:
    """Whether the last phase, whose steps are small, gained more than small steps should."""
    start = plan.phase_ends[-1] * plan.max_steps
    checks = list(zip(history.validation_steps, history.validation_scores, strict=True))
    before = [score for step, score in checks if step <= start]
    return not before or max(score for _, score in checks) > max(before) + plan.last_gain


#: Rows (n, d) of all folds with their weights (F, n), or a fold's own rows (F, n, d) with weights or all counting alike.
Batch = tuple[Tensor, Tensor, Tensor | None]


def _batches(x: Tensor, y: Tensor, fold_weight: Tensor, plan: Plan, generator: torch.Generator) -> Iterator[Batch]:
    """Of each step: shuffled epochs, or all rows of a small table."""
    if len(x) <= plan.batch_size:
        yield from itertools.repeat(_own_rows(x, y, fold_weight), plan.max_steps)
        return
    done = 0
    while done < plan.max_steps:
        order = torch.randperm(len(x), generator=generator, device=x.device)
        for start in range(0, len(x) - plan.batch_size + 1, plan.batch_size):
            if done == plan.max_steps:
                return
            rows = order[start : start + plan.batch_size]
            yield x[rows], y[rows], fold_weight[:, rows]
            done += 1


def _own_rows(x: Tensor, y: Tensor, fold_weight: Tensor) -> Batch:
    """Each fold's own rows, where all have as many: less work than rows that count 0 for some folds."""
    n_rows = (fold_weight > 0).sum(-1)
    if bool((n_rows != n_rows[0]).any()):
        return x, y, fold_weight
    rows = fold_weight.nonzero()[:, 1].reshape(len(fold_weight), -1)
    weight = fold_weight.gather(1, rows)
    return x[rows], y[rows], None if bool((weight == 1.0).all()) else weight


def _for_candidates(batch: Batch, n_candidates: int) -> Batch:
    """The same for every candidate: members are folds of the first candidate, then folds of the second, and so on."""
    x, y, weight = batch
    if x.dim() == 3 and n_candidates > 1:
        x, y = (part.repeat(n_candidates, *[1] * (part.dim() - 1)) for part in (x, y))
    return x, y, None if weight is None else weight.repeat(n_candidates, 1)


def validation_scores(
    posterior: NetworkPosterior, x: Tensor, y: Tensor, weight: Tensor, held_out: Tensor, n_samples: int
) -> tuple[Tensor, Tensor]:
    """For each candidate the calibrated log-likelihood of the held-out rows (C, n), fold after fold, and their weights.

    The noise or the temperature is fitted in the end, so a candidate is not to blame for its own.
    """
    found = predict_held_out(posterior, x, y, weight, held_out, n_samples)
    scores = [calibrated_scores(found.parts([c])) for c in range(found.n_candidates)]
    return torch.stack(scores), torch.cat(found.weight)
