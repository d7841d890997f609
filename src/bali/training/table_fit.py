"""From rows of numbers to a mixture of posteriors: ways of seeing a table that are tried side by side, and what is kept.

Every candidate (an encoding of the columns with a network and a prior) is a stack of members. All of them hold out the same
groups of rows, a group by two members at least, so that candidates are compared on the same rows and a mixture of members
is seen on rows that none of them was trained on. Candidates that are clearly behind stop early; those that cannot be told
from the best are mixed.
"""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from bali.predictive.likelihoods import Likelihood
from bali.training.stack_course import CourseRules, StackCourse, StackData, initial_means
from bali.training.table_posterior import StackPosterior

# --- which rows each group of members holds out -----------------------------------------------------------------------


#: Copies of rows, on average, up to which each is held out or not by itself.
MOST_COPIES = 20


def merged_rows(
    X: NDArray[np.float64], y: NDArray[np.float64], weight: NDArray[np.float64]
) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]:
    """Distinct rows of X and y (n, D) in a fixed order, with the sum of their weights.

    A row given twice is thereby, to the last bit, a row with weight two, and the order of the rows does not matter.
    """
    rows, inverse = np.unique(np.column_stack([X, y]) + 0.0, axis=0, return_inverse=True)
    return rows[:, : X.shape[1]], rows[:, X.shape[1] :], np.bincount(inverse.ravel(), weights=weight).astype(np.float64)


def copies(weight: NDArray[np.float64]) -> NDArray[np.int64]:
    """How often each distinct row was given; once, where weights are no whole numbers or too large for that."""
    whole = bool((weight == np.round(weight)).all()) and weight.sum() <= MOST_COPIES * len(weight)
    return weight.astype(np.int64) if whole else np.ones(len(weight), dtype=np.int64)


def held_out_shares(
    X: NDArray[np.float64], y: NDArray[np.float64], weight: NDArray[np.float64], n_groups: int, share: float, seed: int
) -> NDArray[np.float64]:
    """(n_groups, n): the share of each distinct row's weight that a group holds out, about `share` of all in each.

    A row's place depends on the seed and on what stands in the row, not on where it stands, and a row given twice is a row
    with weight two. Of such a row one copy may be held out and the other one not: new rows repeat old ones as often as
    held-out rows do, and a score that leaves repetitions out is of other rows than those to come. Groups are disjoint. Where
    weights are no whole numbers, a row is held out whole.
    """
    times = copies(weight)
    row = np.repeat(np.arange(len(X)), times)
    number = np.arange(len(row)) - np.repeat(np.cumsum(times) - times, times)
    columns = [X[row], y[row], number] if times.max() > 1 else [X, y]
    order = _random_rank(np.column_stack(columns), seed)
    n = int(order.max()) + 1
    held_out = min(max(round(share * n), 1), n // 2, n // n_groups)
    found = np.zeros((n_groups, len(X)))
    for group in range(n_groups):
        mine = (order >= group * held_out) & (order < (group + 1) * held_out)
        found[group] = np.bincount(row[mine], minlength=len(X)) / times
    return found


def _random_rank(rows: NDArray[np.float64], seed: int) -> NDArray[np.intp]:
    """A random order of the distinct rows, by hashing their bits; equal rows have equal rank."""
    bits = np.ascontiguousarray(rows + 0.0).view(np.uint64)  # + 0.0 turns −0 into 0
    hashed = np.full(len(bits), (seed * 0x9E3779B97F4A7C15 + 1) % 2**64, dtype=np.uint64)
    for column in bits.T:
        hashed = _mix(hashed ^ column)
    rank: NDArray[np.intp] = np.unique(hashed, return_inverse=True)[1]
    return rank


def _mix(h: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """A bijective scrambling of 64 bits by xor-shifts and odd multipliers."""
    h = (h ^ (h >> np.uint64(32))) * np.uint64(0xD6E8FEB86659FD93)
    h = (h ^ (h >> np.uint64(29))) * np.uint64(0xA0761D6478BD642F)
    return h ^ (h >> np.uint64(32))


# --- the training -----------------------------------------------------------------------------------------------------


Outcome = Literal["converged", "time_limit", "interrupted"]
#: After these shares of the steps candidates are compared.
CHECKS_AT = (0.15, 0.3, 0.5, 1.0)
#: Multiplications of a hidden layer's product, for all members, below which threads wait for each other longer than they
#: compute.
_WORTH_THREADS = 2**21
#: Steps that are timed where there is a deadline, and those that are taken in any case.
_TIMED_STEPS, _LEAST_STEPS = 10, 50


class _TimeIsUp(Exception):
    """The deadline has passed."""


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


def half_of(on_step: Callable[[Progress], None] | None, number: int) -> Callable[[Progress], None] | None:
    """For the first (0) or the second (1) of two trainings of about the same length that one bar shows."""
    if on_step is None:
        return None
    return lambda p: on_step(replace(p, step=p.step + number * p.max_steps, max_steps=2 * p.max_steps))


def later(on_step: Callable[[Progress], None] | None, done: int) -> Callable[[Progress], None] | None:
    """For a training that comes after so many steps."""
    if on_step is None or done == 0:
        return on_step
    return lambda p: on_step(replace(p, step=p.step + done, max_steps=p.max_steps + done))


@dataclass
class TableFit:
    """What training found."""

    kept: list[int]  # candidates
    courses: list[StackCourse]  # of those
    posteriors: list[StackPosterior]
    outcome: Outcome
    scores: dict[str, float]  # log-likelihood of held-out rows by each candidate, as far as it went
    n_steps: int  # of all candidates
    losses: list[float] = field(default_factory=list)
    validation: list[tuple[int, float]] = field(default_factory=list)


def train_table(
    candidates: Sequence[Candidate],
    n_members: int,
    activation: str,
    y: Tensor,
    weight: Tensor,
    held_out: Tensor,  # (G, n), shares of the rows' weights
    seed: int,
    *,
    n_jobs: int = 1,
    deadline: float | None = None,
    on_step: Callable[[Progress], None] | None = None,
) -> TableFit:
    """Train all candidates, each `n_members` strong, in turns. `deadline` is a time of `time.monotonic`; `n_jobs` threads
    serve products that are large enough for them.

    Ctrl-C ends the training with the best so far; before the first score there is none that is worth keeping, and it is
    raised.
    """
    masks = held_out[torch.arange(n_members, device=held_out.device) % len(held_out)]
    courses = []
    for number, candidate in enumerate(candidates):
        generator = torch.Generator(device=y.device).manual_seed(seed + 7919 * number)
        sizes = [candidate.x.shape[1], *candidate.sizes]
        means = candidate.start or initial_means(
            n_members, sizes, generator, candidate.x.dtype, gain=candidate.rules.initial_gain
        )
        data, rules = StackData(candidate.x, y, weight, masks), candidate.rules
        courses.append(StackCourse(means, activation, candidate.likelihood, data, rules, generator, candidate.offset))
    outcome: Outcome = "converged"
    is_watched = bool(held_out.any())  # otherwise there are no scores worth telling
    running = list(range(len(candidates)))
    try:
        if deadline is not None:
            _shorten(courses, deadline)
        for share, number in itertools.product(CHECKS_AT, range(len(candidates))):
            if number in running:
                course = courses[number]
                until = round(share * course.rules.n_steps)
                with _threads(n_jobs if _work(course) >= _WORTH_THREADS else 1):
                    for step in course.run(until):
                        if on_step is not None:
                            total = sum(c.step if i not in running else c.rules.n_steps for i, c in enumerate(courses))
                            last = [c.scores[-1][1] for c in courses if c.scores]
                            score = max(last) if is_watched and last else None
                            on_step(Progress(sum(c.step for c in courses), total, -course.losses[-1], score))
                        is_late = deadline is not None and time.monotonic() > deadline
                        if is_late and course.scores and step < until:
                            raise _TimeIsUp
            if number == len(candidates) - 1:
                running = [i for i in running if not _is_behind(courses[i], _best(courses, running), 2.0)]
    except _TimeIsUp:
        outcome = "time_limit"
    except KeyboardInterrupt:
        if not any(courses[i].scores for i in running):
            raise
        outcome = "interrupted"
    running = [i for i in running if courses[i].scores] or running[:1]
    best = _best(courses, running)
    kept = [i for i in running if not _is_behind(courses[i], best, 1.0)]
    kept = [i for i in kept if type(courses[i].likelihood) is type(best.likelihood)]
    found = [courses[i] for i in kept]
    posteriors = [StackPosterior.around(c.curvature(), c.n_data, activation) for c in found]
    n_steps = sum(course.step for course in courses)
    if not is_watched:
        return TableFit(kept, found, posteriors, outcome, {}, n_steps, found[0].losses)
    scores = {c.name: courses[i].scores[-1][1] for i, c in enumerate(candidates) if courses[i].scores}
    return TableFit(kept, found, posteriors, outcome, scores, n_steps, found[0].losses, found[0].scores)


def _shorten(courses: Sequence[StackCourse], deadline: float) -> None:
    """Courses that would take too long become shorter, as a few steps of each tell; no course is cut off before its end."""
    seconds = 0.0
    for course in courses:
        start = time.monotonic()
        for _ in course.run(min(_TIMED_STEPS, course.rules.n_steps)):
            pass
        seconds += (time.monotonic() - start) / _TIMED_STEPS
    affordable = max(_LEAST_STEPS, int((deadline - time.monotonic()) / seconds))
    for course in courses:
        course.rules = replace(course.rules, n_steps=min(course.rules.n_steps, affordable))


def _work(course: StackCourse) -> int:
    """Multiplications of the largest product of a step."""
    return min(course.rules.batch_size, len(course.data.x)) * max(mean.numel() for mean in course.means)


@contextmanager
def _threads(n: int) -> Iterator[None]:
    """So many for torch, and afterwards as before."""
    before = torch.get_num_threads()
    torch.set_num_threads(n)
    try:
        yield
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
