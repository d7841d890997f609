"""The race between candidates."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.exceptions import ConvergenceWarning
from torch import Tensor

from bali import BALIRegressor, LayerwiseInference
from bali.estimators.mlp import draw_initial_weights, stacked_mlp, unit_variances
from bali.predictive.likelihoods import Gaussian
from bali.training.held_out import predict_held_out
from bali.training.plan import Plan
from bali.training.race import Candidate, History, Progress, Race, train, validation_scores

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
    draw_initial_weights(module, unit, generator)
    member_variance = torch.tensor(variances, dtype=torch.float64).repeat_interleave(N_FOLDS)
    prior = {name: member_variance * value for name, value in unit.items()}
    return LayerwiseInference(module, Gaussian(), N_ROWS, prior_variance=prior, generator=generator)


def plan(max_steps: int = 400) -> Plan:
    return Plan(max_steps=max_steps, batch_size=1000, ema_rate=0.2)


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
    found = predict_held_out(inference.posterior(), x, y, torch.ones(N_ROWS), held_out, n_samples=4)
    for fold, part in enumerate(found.parts([0])):
        rows = held_out[fold]
        means = inference.predict(x[:40], 4).components(torch.arange(fold, 4 * N_FOLDS, N_FOLDS)).rows(rows[:40])
        torch.testing.assert_close(part.predictive.log_prob(y[rows]), means.log_prob(y[rows]))
        assert torch.equal(part.y, y[rows])


def test_folds_of_different_size_are_not_mixed_up() -> None:
    x, y, held_out = problem()
    held_out[1, 25:40] = False
    inference = stacked([10.0, 1.0])
    inference.step(x, y)
    found = predict_held_out(inference.posterior(), x, y, torch.arange(N_ROWS).double(), held_out, n_samples=3)
    one, both = found.parts([1]), found.parts([0, 1])
    assert [len(part.y) for part in one] == [20, 5]
    assert [part.predictive.n_components for part in both] == [6, 6]
    assert one[1].weight.tolist() == list(range(20, 25))
    alone = inference.predict(x[20:25], 3).components(torch.tensor([3, 7, 11]))  # fold 1 of candidate 1
    torch.testing.assert_close(one[1].predictive.log_prob(y[20:25]), alone.log_prob(y[20:25]))


def test_rows_that_all_folds_hold_out_are_predicted_by_the_mixture() -> None:
    x, y, held_out = problem()
    held_out[1] = held_out[0]
    inference = stacked([10.0, 1.0])
    inference.step(x, y)
    found = predict_held_out(inference.posterior(), x, y, torch.ones(N_ROWS), held_out, n_samples=3)
    assert found.n_candidates == 2
    [part] = found.parts([1])
    alone = inference.predict(x[:20], 3).components(torch.tensor([2, 3, 6, 7, 10, 11]))  # both folds of candidate 1
    torch.testing.assert_close(part.predictive.log_prob(y[:20]), alone.log_prob(y[:20]))
    scores, weight = validation_scores(inference.posterior(), x, y, torch.ones(N_ROWS), held_out, n_samples=3)
    assert scores.shape == (2, 20)
    assert weight.shape == (20,)


def test_the_hopeless_candidate_is_dropped_and_the_best_point_kept() -> None:
    inference, history = run([1e-4, 10.0], plan())
    assert history.chosen == [1]
    assert inference.setup.network.members == N_FOLDS
    x, y, held_out = problem()
    scores, _ = validation_scores(inference.posterior(), x, y, torch.ones(N_ROWS), held_out, n_samples=64)
    best = max(history.validation_scores)
    assert float(scores.mean()) > best - 0.1


def test_candidates_that_are_alike_are_mixed() -> None:
    noise = torch.randn(40, generator=torch.Generator().manual_seed(0))
    for gap, kept in ((0.0, 2), (1.0, 1)):
        race = Race(stacked([10.0, 10.0]), 2, plan())
        race.check(torch.stack([noise, noise.flip(0) - gap]), torch.ones(40), step=5)
        assert race.at_best().setup.network.members == kept * N_FOLDS


def test_only_a_stronger_prior_that_falls_behind_is_dropped_in_the_first_phase() -> None:
    noise = torch.randn(40, generator=torch.Generator().manual_seed(0))
    for gap, left in ((1.0, [0, 1]), (-1.0, [1])):  # of the second candidate, whose prior is the weaker one
        race = Race(stacked([1.0, 10.0]), 2, replace(plan(), patience=3))
        for k in range(1, 5):  # both go on improving
            assert not race.check(torch.stack([noise + k / 9, noise.flip(0) + k / 9 - gap]), torch.ones(40), step=5 * k)
        assert [candidate.number for candidate in race.running] == left
        assert race.inference.setup.network.members == len(left) * N_FOLDS


def test_training_goes_on_from_the_kept_members_bit_for_bit() -> None:
    first, _ = run([1.0, 10.0], plan(100))
    second, _ = run([1.0, 10.0], plan(100))
    x, y, _ = problem()
    assert torch.equal(first.step(x, y), second.step(x, y))


def test_a_small_table_is_trained_on_as_if_held_out_rows_counted_nothing() -> None:
    """Whether folds get rows of their own or all rows with weights; also where weights or the folds' sizes differ."""
    x, y, held_out = problem()
    uneven = held_out.clone()
    uneven[1, 40:47] = True
    generator = torch.Generator().manual_seed(1)
    for mask in (held_out, uneven):
        for weight in (torch.ones(N_ROWS).double(), 0.5 + torch.rand(N_ROWS, generator=generator, dtype=torch.float64)):
            expected, found = stacked([1.0, 40.0]), stacked([1.0, 40.0])
            for _ in range(4):
                expected.step(x, y, 0.2, (weight * ~mask).repeat(2, 1))
            train(found, 2, x, y, weight, mask, plan(4), generator)  # which steps all members until the first check
            for name, posterior in expected.posteriors.items():
                torch.testing.assert_close(found.posteriors[name].mean, posterior.mean, rtol=1e-8, atol=1e-10)
                torch.testing.assert_close(found.posteriors[name].scale, posterior.scale, rtol=1e-8, atol=1e-10)


def test_momentum_ends_with_the_training() -> None:
    """A model goes on from a file as it goes on from memory, and its file holds no more than posteriors."""
    trained, _ = run([1.0], replace(plan(12), momentum=0.5))
    assert all(layer.velocity is None for layer in trained.state.layers.values())
    assert not [key for key in trained.state_dict()["tensors"] if key.endswith("velocity")]


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
    from bali.training.race import _batches

    x, of_each = torch.arange(10.0)[:, None], Plan(max_steps=4, batch_size=5, ema_rate=0.1)
    batches = list(_batches(x, x[:, 0], torch.ones(3, 10), of_each, torch.Generator()))
    assert len(batches) == 4
    for epoch in (batches[:2], batches[2:]):
        rows = torch.cat([batch[1] for batch in epoch])
        assert sorted(rows.tolist()) == list(range(10))


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """What every step was asked for, in order."""
    seen: list[dict[str, Any]] = []
    step = LayerwiseInference.step

    def noting(self: LayerwiseInference, *args: Any, **options: Any) -> Tensor:
        seen.append(options)
        return step(self, *args, **options)

    monkeypatch.setattr(LayerwiseInference, "step", noting)
    return seen


def test_the_step_size_grows_at_first_and_falls_from_phase_to_phase(asked: list[dict[str, Any]]) -> None:
    race = Race(stacked([10.0]), 1, replace(plan(100), warm_up=0.2, decay=0.5, ema_rate=0.4))
    x, y, _ = problem()
    for number in (1, 10, 20, 50):
        race.step(number, x, y, None)
    torch.testing.assert_close(
        [options["step_size"] for options in asked], [0.5 * warm for warm in (0.05, 0.5, 1.0, 1.0)]
    )  # 0.5 is the inference's own
    race.check(torch.zeros(1, 40), torch.ones(40), step=50)  # half of the steps are done: the phase is over
    race.step(51, x, y, None)
    assert (race.phase, asked[-1]["step_size"]) == (2, 0.25)


def test_rate_and_momentum_are_not_more_than_a_whole_step(asked: list[dict[str, Any]]) -> None:
    x, y, _ = problem()
    for rate, momentum in ((0.3, 0.5), (0.6, 0.4), (1.0, 0.0)):
        race = Race(stacked([10.0]), 1, replace(plan(), ema_rate=rate, momentum=0.5))
        race.step(1, x, y, None)
        assert abs(asked[-1]["momentum"] - momentum) < 1e-12


def test_averaged_means_are_scored_and_kept_and_stay_with_their_members() -> None:
    x, y, _ = problem()
    race = Race(stacked([1.0, 10.0, 40.0]), 3, replace(plan(), averaging=0.25, patience=2))
    history: list[Tensor] = []
    for number in range(1, 7):
        race.step(number, x, y, None)
        history.append(race.inference.posteriors["0"].mean.clone())
    expected = history[0]
    for number, mean in enumerate(history[1:], start=2):
        expected = expected.lerp(mean, max(0.25, 1 / number))
    torch.testing.assert_close(race.posterior.posteriors["0"].mean, expected)
    weight = torch.ones(40, dtype=torch.float64)
    for step, score in ((5, 0.0), (10, -1.0), (15, -2.0)):  # the second one goes on improving, the others do not
        scores = torch.full((len(race.running), 40), score, dtype=torch.float64)
        scores[[c.number for c in race.running].index(1)] = 0.01 * step
        race.check(scores, weight, step)
    assert [c.number for c in race.running] == [1]
    torch.testing.assert_close(race.posterior.posteriors["0"].mean, expected[N_FOLDS : 2 * N_FOLDS])
    race.step(7, x, y, None)
    later = expected[N_FOLDS : 2 * N_FOLDS].lerp(race.inference.posteriors["0"].mean, 0.25)
    torch.testing.assert_close(race.posterior.posteriors["0"].mean, later)
    torch.testing.assert_close(race.at_best().posteriors["0"].mean, expected[N_FOLDS : 2 * N_FOLDS])


def test_what_is_kept_has_the_step_size_that_was_asked_for() -> None:
    trained, _ = run([1.0], replace(plan(12), warm_up=0.9, averaging=0.1))
    assert trained.setup.settings.step_size == 0.5
    model = BALIRegressor(max_iter=3, random_state=0).set_params(step_size=np.float32(0.25))  # any kind of number
    with pytest.warns(ConvergenceWarning):
        model.fit(*(part.numpy() for part in problem()[:2]))
    assert model.inference_.setup.settings.step_size == 0.25


def test_a_weaker_prior_may_catch_up_while_steps_are_large() -> None:
    noise = torch.randn(40, generator=torch.Generator().manual_seed(0))
    for decay, left in ((0.5, [0, 1]), (0.3, [0])):
        race = Race(stacked([1.0, 10.0]), 2, replace(plan(100), decay=decay))
        race.check(torch.stack([noise, noise - 1.0]), torch.ones(40), step=50)
        assert (race.phase, [c.number for c in race.candidates]) == (2, left)


def test_candidates_that_were_best_with_and_without_momentum_go_on_together() -> None:
    """A rate of 1 leaves no room for momentum in the first phase; the next one has it."""
    x, y, _ = problem()
    race = Race(stacked([1.0, 10.0]), 2, replace(plan(100), ema_rate=1.0, decay=0.5, momentum=0.5, phase_ends=(0.1, 0.2)))
    noise = torch.randn(40, generator=torch.Generator().manual_seed(0))
    for step, gain in ((10, 0.0), (20, 1.0)):  # the second one is best later
        race.step(step, x, y, None)
        race.check(torch.stack([noise, noise.flip(0) + 0.1 * gain]), torch.ones(40), step)
    assert [c.step for c in race.candidates] == [10, 20]
    assert race.phase == 3
    velocity = race.inference.state.layers["0"].velocity
    assert velocity is not None
    assert [bool(v.any()) for v in velocity] == [False] * N_FOLDS + [True] * N_FOLDS
    race.step(21, x, y, None)
