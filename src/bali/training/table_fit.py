"""From rows of numbers to a mixture of posteriors: ways of seeing a table that are tried side by side, and what is kept.

Every candidate (an encoding of the columns with a network and a prior) is a stack of members. All of them hold out the same
groups of rows, a group by two members at least, so that candidates are compared on the same rows and a mixture of members
is seen on rows that none of them was trained on. Candidates that are clearly behind stop early; those that cannot be told
from the best are mixed.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Tensor

from bali.predictive.likelihoods import Likelihood
from bali.training.stack_course import CourseRules, StackCourse, StackData, initial_means
from bali.training.stack_posterior import StackPosterior

Outcome = Literal["converged", "time_limit", "interrupted"]
#: After these shares of the steps candidates are compared.
CHECKS_AT = (0.25, 0.5)


@dataclass(frozen=True)
class Candidate:
    """One way of seeing the table."""

    name: str
    x: Tensor  # encoded rows, (n, D)
    sizes: tuple[int, ...]  # of hidden layers and outputs
    likelihood: Likelihood
    rules: CourseRules
    offset: Tensor | None = None  # added to the outputs, where the likelihood has one
    start: list[Tensor] | None = None  # means to go on from


@dataclass(frozen=True)
class Progress:
    """What a progress bar can show."""

    step: int
    max_steps: int
    log_likelihood: float
    validation_score: float | None


@dataclass
class TableFit:
    """What training found."""

    kept: list[int]  # candidates
    courses: list[StackCourse]  # of those
    posteriors: list[StackPosterior]
    outcome: Outcome
    scores: dict[str, float]  # log-likelihood of held-out rows by each candidate, as far as it went
    losses: list[float] = field(default_factory=list)
    validation: list[tuple[int, float]] = field(default_factory=list)


def train_table(
    candidates: Sequence[Candidate],
    n_members: int,
    activation: str,
    y: Tensor,
    weight: Tensor,
    held_out: Tensor,  # (G, n)
    seed: int,
    *,
    n_jobs: int = 1,
    deadline: float | None = None,
    on_step: Callable[[Progress], None] | None = None,
) -> TableFit:
    """Train all candidates, each `n_members` strong. `deadline` is a time of `time.monotonic`.

    Ctrl-C ends the training with the best so far; before the first score there is none that is worth keeping, and it is
    raised.
    """
    masks = held_out[torch.arange(n_members, device=held_out.device) % len(held_out)]
    courses = []
    for number, candidate in enumerate(candidates):
        generator = torch.Generator(device=y.device).manual_seed(seed + 7919 * number)
        sizes = [candidate.x.shape[1], *candidate.sizes]
        means = candidate.start or initial_means(n_members, sizes, generator, candidate.x.dtype)
        data, rules = StackData(candidate.x, y, weight, masks), candidate.rules
        courses.append(StackCourse(means, activation, candidate.likelihood, data, rules, generator, candidate.offset))
    running, outcome, shares = list(range(len(candidates))), "converged", (*CHECKS_AT, 1.0)
    total = sum(candidate.rules.n_steps for candidate in candidates)
    try:
        with ThreadPoolExecutor(max(1, n_jobs)) as pool:
            for share in shares:
                parts = [(courses[i], round(share * candidates[i].rules.n_steps)) for i in running]
                done = _run_side_by_side(pool, parts, courses, total, deadline, on_step)
                if not done:
                    outcome = "time_limit"
                    break
                running = [i for i in running if not _is_behind(courses[i], _best(courses, running), 2.0)]
                total = sum(c.rules.n_steps if i in running else courses[i].step for i, c in enumerate(candidates))
    except KeyboardInterrupt:
        if not all(courses[i].scores for i in running):
            raise
        outcome = "interrupted"
    running = [i for i in running if courses[i].scores] or running[:1]
    best = _best(courses, running)
    kept = [i for i in running if not _is_behind(courses[i], best, 1.0)]
    kept = [i for i in kept if type(courses[i].likelihood) is type(best.likelihood)]
    found = [courses[i] for i in kept]
    posteriors = [StackPosterior.around(c.curvature(), c.n_data, activation) for c in found]
    scores = {c.name: courses[i].scores[-1][1] for i, c in enumerate(candidates) if courses[i].scores}
    return TableFit(kept, found, posteriors, outcome, scores, found[0].losses, found[0].scores)  # type: ignore[arg-type]


def _run_side_by_side(
    pool: ThreadPoolExecutor,
    parts: Sequence[tuple[StackCourse, int]],
    courses: Sequence[StackCourse],
    total: int,
    deadline: float | None,
    on_step: Callable[[Progress], None] | None,
) -> bool:
    """Run each course up to its step, one thread each; whether all came so far before the deadline."""
    stop = False

    def run(course: StackCourse, until: int) -> bool:
        torch.set_num_threads(1)  # of this thread: cores are taken by other candidates
        for _ in course.run(until):
            if stop or (deadline is not None and time.monotonic() > deadline):
                return False
            if on_step is not None:
                score = max(c.scores[-1][1] for c in courses if c.scores)
                on_step(Progress(sum(c.step for c in courses), total, -course.losses[-1], score))
        return course.step >= until or not stop

    before = torch.get_num_threads()
    futures = [pool.submit(run, *part) for part in parts]
    try:
        return all([future.result() for future in futures])
    except BaseException:
        stop = True
        for future in futures:
            future.cancel()
        raise
    finally:
        torch.set_num_threads(before)


def _best(courses: Sequence[StackCourse], running: Sequence[int]) -> StackCourse:
    return min((courses[i] for i in running), key=lambda c: c.best_score.mean().item())


def _is_behind(course: StackCourse, best: StackCourse, n_errors: float) -> bool:
    """Whether its members' scores are worse than those of the best, pair by pair, by so many standard errors."""
    if course is best or not course.scores:
        return False
    gap = (course.best_score - best.best_score).double()
    error = gap.std().item() / math.sqrt(len(gap)) if len(gap) > 1 else math.inf
    return bool(gap.mean().item() > n_errors * error)
