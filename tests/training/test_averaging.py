"""Averaged means, against their definition and against the posterior of all rows."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import bali
from support.networks import batches, data, inference, mlp
from support.oracles import assert_close

RATE = 0.25


def start() -> bali.LayerwiseInference:
    return inference(mlp((3, 6, 5, 2)), "gaussian", n_data=40, effective_size=30.0)


def test_averages_are_those_of_their_definition_and_leave_the_training_alone() -> None:
    """The first steps count alike, later ones by the rate."""
    plain, run = start(), start()
    averaged = bali.AveragedMeans(run, RATE)
    expected: dict[str, torch.Tensor] = {}
    for step, (x, y) in enumerate(batches(*data("gaussian", 40, 3, 2), 16, 9), start=1):
        plain.step(x, y)
        run.step(x, y)
        averaged.update()
        for name, posterior in plain.posteriors.items():
            share = max(1.0 / step, RATE)
            expected[name] = (1.0 - share) * expected.get(name, torch.zeros(())) + share * posterior.mean
            found = averaged.posterior().posteriors[name]
            assert_close(found.mean, expected[name])
            assert_close(found.precision.dense(), posterior.precision.dense())
            assert_close(found.scale, posterior.scale)
            assert_close(run.posteriors[name].mean, posterior.mean)
    assert any((averaged.means[name] - q.mean).abs().max() > 1e-3 for name, q in run.posteriors.items())


def test_predictions_and_files_have_the_averages(tmp_path: Path) -> None:
    run = start()
    averaged = bali.AveragedMeans(run)
    rows = data("gaussian", 40, 3, 2)
    for x, y in batches(*rows, 16, 5):
        run.step(x, y)
        averaged.update()
    going_on = start()
    going_on.load_state_dict(run.state_dict())
    going_on.state = averaged.state()
    going_on.save(tmp_path / "averaged.safetensors")
    again = start()
    again.load(tmp_path / "averaged.safetensors")
    found, saved, last = (i.predict(rows[0], 4).log_prob(rows[1]) for i in (averaged.posterior(), again, run))
    assert_close(found, saved)
    assert (found - last).abs().max() > 1e-3


def test_a_saved_average_goes_on_as_it_does_from_memory() -> None:
    run = start()
    averaged, other = bali.AveragedMeans(run, RATE), bali.AveragedMeans(run, RATE)
    steps = batches(*data("gaussian", 40, 3, 2), 16, 6)
    for x, y in steps[:3]:
        run.step(x, y)
        averaged.update()
    kept = averaged.state_dict()
    for x, y in steps[3:]:
        run.step(x, y)
        averaged.update()
        if other.steps == 0:
            other.load_state_dict(kept)
        other.update()
    assert other.steps == averaged.steps == 6
    for name, mean in averaged.means.items():
        assert torch.equal(mean, other.means[name])


def test_the_average_is_nearer_to_the_posterior_of_all_rows() -> None:
    """A linear regression in mini-batches: the mean jumps around the one of all rows, by less if it is averaged."""
    x, y = data("gaussian", 200, 3, 1)

    def linear(rate: float) -> bali.LayerwiseInference:
        return inference(mlp((3, 1)), "gaussian", n_data=200, effective_size=200.0, ema_rate=rate)

    whole, run = linear(1.0), linear(0.3)
    whole.step(x, y)
    averaged = bali.AveragedMeans(run, 0.03)
    jumps, rest = [], []
    for step, (some, targets) in enumerate(batches(x, y, 20, 150)):
        run.step(some, targets)
        averaged.update()
        if step >= 50:
            jumps.append((run.posteriors["0"].mean - whole.posteriors["0"].mean).norm())
            rest.append((averaged.means["0"] - whole.posteriors["0"].mean).norm())
    assert torch.stack(rest).mean() < 0.6 * torch.stack(jumps).mean()


@pytest.mark.parametrize("rate", [0.0, -0.1, 1.1, float("nan")])
def test_rates_that_are_none(rate: float) -> None:
    with pytest.raises(ValueError, match="rate is"):
        bali.AveragedMeans(start(), rate)


def test_nothing_to_average_is_said() -> None:
    averaged = bali.AveragedMeans(start())
    with pytest.raises(RuntimeError, match="call step"):
        averaged.update()
    assert averaged.steps == 0
    with pytest.raises(RuntimeError, match=r"call update\(\)"):
        averaged.posterior()
