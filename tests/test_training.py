"""The race between candidates."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from bali import LayerwiseInference
from bali.likelihoods import Gaussian
from bali.mlp import draw_weights, stacked_mlp, unit_variances
from bali.training import Candidate, History, Plan, Progress, train, validation_scores

N_FOLDS, N_ROWS = 2, 120


def problem() -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(N_ROWS, 2, generator=generator, dtype=torch.float64)
    y = x[:, :1].sin() + 0.1 * torch.randn(N_ROWS, 1, generator=generator, dtype=torch.float64)
    held_out = torch.zeros(N_FOLDS, N_ROWS, dtype=torch.bool)
    held_out[0, :20], held_out[1, 20:40] = True, True
    return x, y, held_out


def stacked(variances: list[float], seed: int = 0) -> LayerwiseInference:
    module = stacked_mlp(N_FOLDS * len(variances), [2, 8, 1], "tanh").double()
    unit = unit_variances([2, 8, 1])
    generator = torch.Generator().manual_seed(seed)
    draw_weights(module, unit, generator)
    member_variance = torch.tensor(variances, dtype=torch.float64).repeat_interleave(N_FOLDS)
    prior = {name: member_variance * value for name, value in unit.items()}
    return LayerwiseInference(module, Gaussian(), N_ROWS, prior_variance=prior, generator=generator)


def plan(max_steps: int = 400, **changes: int) -> Plan:
    return Plan(max_steps=max_steps, batch_size=1000, ema_rate=0.2, **changes)


def run(variances: list[float], settings: Plan, held_out: Tensor | None = None) -> tuple[LayerwiseInference, History]:
    x, y, default = problem()
    mask = default if held_out is None else held_out
    weight = torch.ones(N_ROWS, dtype=torch.float64)
    return train(stacked(variances), len(variances), x, y, weight, mask, settings, torch.Generator().manual_seed(0))


def test_scores_are_of_rows_that_the_fold_did_not_see() -> None:
    x, y, held_out = problem()
    inference = stacked([10.0])
    for _ in range(5):
        inference.step(x, y, sample_weight=(~held_out).double())
    scores, _ = validation_scores(inference, x, y, torch.ones(N_ROWS), held_out, n_samples=4)
    expected = []
    for fold in range(N_FOLDS):
        rows = held_out[fold]
        components = inference.predict(x[:40], 4).component_log_prob(y[:40]).reshape(4, N_FOLDS, 40)[:, fold]
        expected.append((components.logsumexp(0) - math.log(4))[rows[:40]])
    torch.testing.assert_close(scores[0], torch.cat(expected))


def test_the_hopeless_candidate_is_dropped_and_the_best_point_kept() -> None:
    inference, history = run([1e-4, 10.0], plan())
    assert history.chosen == [1]
    assert inference.network.members == N_FOLDS
    x, y, held_out = problem()
    scores, _ = validation_scores(inference, x, y, torch.ones(N_ROWS), held_out, n_samples=64)
    best = max(history.validation_scores)
    assert float(scores.mean()) > best - 0.1


def test_candidates_that_are_alike_are_mixed() -> None:
    inference, history = run([10.0, 10.0001], plan())
    assert history.chosen == [0, 1]
    assert inference.network.members == 2 * N_FOLDS


def test_training_goes_on_from_the_kept_members_bit_for_bit() -> None:
    first, _ = run([1.0, 10.0], plan(100))
    second, _ = run([1.0, 10.0], plan(100))
    x, y, _ = problem()
    assert torch.equal(first.step(x, y), second.step(x, y))


def test_progress_is_told_after_every_step() -> None:
    x, y, held_out = problem()
    seen: list[Progress] = []
    train(
        stacked([10.0]), 1, x, y, torch.ones(N_ROWS).double(), held_out, plan(30), torch.Generator(), seen.append
    )  # fmt: skip
    assert [p.step for p in seen] == list(range(1, 31))
    assert seen[0].validation_score is None
    assert seen[-1].validation_score is not None


def test_patience() -> None:
    candidate = Candidate(0)
    verdicts = [candidate.see(score, tolerance=0.1) for score in (1.0, 2.0, 2.05, 1.5)]
    assert verdicts == [True, True, True, True]  # the caller keeps the best score, here it never has
    assert candidate.waited == 2


def test_mini_batches_cover_every_row_once_an_epoch() -> None:
    from bali.training import _batches

    batches = list(_batches(10, Plan(max_steps=4, batch_size=5, ema_rate=0.1), torch.device("cpu"), torch.Generator()))
    assert len(batches) == 4
    for epoch in (batches[:2], batches[2:]):
        rows = torch.cat([batch for batch in epoch if batch is not None])
        assert sorted(rows.tolist()) == list(range(10))
