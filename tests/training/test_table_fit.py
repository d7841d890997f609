"""Candidates side by side: who is dropped, who is mixed, and how a training ends early."""

from __future__ import annotations

import time
from typing import Any

import pytest
import torch
from torch import Tensor

from bali.predictive.likelihoods import Categorical, Gaussian, Likelihood, Poisson
from bali.training.stack_course import (
    ASTRAY,
    CourseRules,
    StackCourse,
    StackData,
    best_constant,
    initial_means,
)
from bali.training.table_fit import Candidate, Progress, TableFit, train_table
from support.networks import randn, seeded
from support.oracles import assert_close
from support.stacked import with_ones

N, K = 150, 4
RULES = CourseRules(n_steps=120, batch_size=64)
HELD_OUT = torch.arange(N) % 5 == torch.arange(2)[:, None]


def rows() -> tuple[Tensor, Tensor]:
    x = randn(N, 3, seed=1)
    return x, torch.sin(2 * x[:, :1]) + 0.1 * randn(N, 1, seed=2)


def trained(*xs: Tensor, likelihood: Likelihood | None = None, rules: CourseRules = RULES, **named: Any) -> TableFit:
    candidates = [Candidate(f"candidate {i}", x, (10, 1), likelihood or Gaussian(), rules) for i, x in enumerate(xs)]
    held_out = named.pop("held_out", HELD_OUT)
    return train_table(candidates, K, "tanh", rows()[1], torch.ones(N).double(), held_out, 0, **named)


def test_a_hopeless_candidate_is_dropped_early() -> None:
    x, _ = rows()
    taken: list[Progress] = []
    found = trained(randn(N, 3, seed=9), x, on_step=taken.append)
    assert found.kept == [1]
    assert found.outcome == "converged"
    assert found.courses[0].step == RULES.n_steps
    assert taken[-1].step == taken[-1].max_steps < 2 * RULES.n_steps
    assert found.scores["candidate 1"] > found.scores["candidate 0"] + 0.2


def test_candidates_that_cannot_be_told_apart_are_mixed() -> None:
    """Two courses that are one and the same, and one that is behind."""
    x, y = rows()
    start, whole = initial_means(K, [3, 10, 1], seeded(0), torch.float64), CourseRules(n_steps=60, batch_size=N)
    candidates = [Candidate(str(i), part, (10, 1), Gaussian(), whole, start=start) for i, part in enumerate((x, 0 * x, x))]
    found = train_table(candidates, K, "tanh", y, torch.ones(N).double(), HELD_OUT, 0)
    assert found.kept == [0, 2]
    assert [posterior.n_members for posterior in found.posteriors] == [K, K]
    assert found.scores["0"] == found.scores["2"] > found.scores["1"]


def test_only_candidates_of_one_likelihood_are_mixed() -> None:
    x, _ = rows()

    class Other(Gaussian):
        """The same under another name."""

    candidates = [Candidate(str(i), x, (10, 1), kind, RULES) for i, kind in enumerate((Gaussian(), Other(), Gaussian()))]
    found = train_table(candidates, K, "tanh", rows()[1], torch.ones(N).double(), HELD_OUT, 0)
    assert found.kept in ([0, 2], [0], [1], [2])


def test_the_same_seed_gives_the_same_networks() -> None:
    x, _ = rows()
    one, other = trained(x), trained(x)
    for a, b in zip(one.posteriors[0].layers, other.posteriors[0].layers, strict=True):
        assert torch.equal(a.mean, b.mean)


def test_without_held_out_rows_the_last_average_counts_and_there_are_no_scores() -> None:
    x, y = rows()
    found = trained(x, held_out=torch.zeros(1, N, dtype=torch.bool))
    assert (found.scores, found.validation) == ({}, [])
    z = found.posteriors[0].outputs(x)[0].mean(0)
    assert float((z - y).square().mean()) < 0.3 * float(y.var())


def test_a_deadline_shortens_the_course() -> None:
    x, _ = rows()
    long = CourseRules(n_steps=10**6, batch_size=64)
    started = time.monotonic()
    found = trained(x, x.clone(), rules=long, deadline=started + 1.0)
    assert time.monotonic() - started < 60.0  # a busy machine
    assert all(course.rules.n_steps < 10**6 for course in found.courses)
    assert all(course.scores for course in found.courses)
    past = trained(x, rules=long, deadline=started)
    assert past.courses[0].step >= 25
    assert past.courses[0].scores


class Interrupting(Gaussian):
    """Ctrl-C at the n-th look at the rows."""

    def __init__(self, at: int) -> None:
        self.left = at

    def evaluate(self, z: Tensor, y: Tensor, noise_factor: Tensor | None = None) -> tuple[Tensor, Tensor]:
        self.left -= 1
        if self.left == 0:
            raise KeyboardInterrupt
        return super().evaluate(z, y, noise_factor)


def test_ctrl_c_before_the_first_score_is_raised() -> None:
    with pytest.raises(KeyboardInterrupt):
        trained(rows()[0], likelihood=Interrupting(at=20))


def test_ctrl_c_later_keeps_the_best_so_far() -> None:
    found = trained(rows()[0], likelihood=Interrupting(at=60))
    assert found.outcome == "interrupted"
    assert found.courses[0].step < RULES.n_steps
    assert found.validation[-1][0] <= found.courses[0].step
    assert found.posteriors[0].n_members == K


def course(n: int = N, k: int = K, *, rules: CourseRules = RULES, x: Tensor | None = None) -> StackCourse:
    x = randn(n, 3, seed=1) if x is None else x
    y = torch.sin(2 * x[:, :1]) + 0.1 * randn(len(x), 1, seed=2)
    held_out = torch.arange(len(x)) % 5 == torch.arange(k)[:, None] % 2
    data = StackData(x, y, torch.ones(len(x)).double(), held_out)
    return StackCourse(initial_means(k, [3, 10, 1], seeded(0), torch.float64), "tanh", Gaussian(), data, rules, seeded(0))


def test_a_course_in_parts_is_the_course() -> None:
    whole, parts = course(), course()
    scored = list(whole.run(120))
    assert scored == [*parts.run(30), *parts.run(71), *parts.run(120)]
    for one, other in zip(whole.best, parts.best, strict=True):
        assert torch.equal(one, other)
    assert len(whole.losses) == whole.step == 120


def test_the_best_means_are_those_of_the_best_score() -> None:
    run = course()
    for _ in run.run(120):
        pass
    rows_out = run.data.held_out
    z = run.outputs(run.best, run.data.x)
    for k in range(K):
        residual = (run.data.y - z[k])[rows_out[k]]
        score = 0.5 * (1.0 + float((2 * torch.pi * residual.square().mean()).log()))
        assert float(run.best_score[k]) == pytest.approx(score, abs=1e-4)


def test_curvature_of_some_rows_is_like_that_of_all_though_tables_are_sorted() -> None:
    x = randn(2000, 3, seed=1)
    run = course(x=x[x[:, 0].argsort()], rules=CourseRules(n_steps=25, batch_size=64))
    for _ in run.run(25):
        pass
    every, some = run.curvature(), run.curvature(max_rows=300)
    for one, other in zip(every, some, strict=True):
        assert one.inputs is not None
        assert other.inputs is not None
        assert_close(other.inputs, one.inputs, 0.15)
    ones = with_ones(run.data.x)[~run.data.held_out[0]]
    assert every[0].inputs is not None
    assert_close(every[0].inputs.values[0], ones.mT @ ones / len(ones))


def test_members_that_have_gone_astray_are_brought_back() -> None:
    run = course()
    for layer in run.layers:
        layer.mean[2] *= 300.0
    for average in run.averages:
        for mean in average:
            mean[2] *= 300.0
    while not run.scores:
        next(run.run(120))
    assert bool((run.best_score <= run.best_score.median() + ASTRAY).all())
    for best in run.best:
        assert torch.equal(best[2], best[0])  # which holds out the same rows


def test_the_best_constant_is_that_of_the_observations() -> None:
    counts = torch.tensor([0.0, 1.0, 5.0, 2.0]).double()[:, None]
    weight = torch.tensor([1.0, 1.0, 2.0, 1.0]).double()
    assert_close(best_constant(Poisson(), counts, weight, 1), torch.tensor([13 / 5]).double().log(), 1e-2)
    classes = torch.tensor([0, 1, 1, 2])
    p = best_constant(Categorical(), classes, torch.ones(4).double(), 3).softmax(-1)
    assert_close(p, torch.tensor([0.25, 0.5, 0.25]).double(), 1e-2)
