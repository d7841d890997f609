"""The temperature of class probabilities."""

import pytest
import torch

from bali.predictive.mixtures import ClassPredictive, RegressionPredictive
from bali.training.calibration import LEAST_DOF, MOST_DOF, Part, fit_noise, fit_temperature


def test_tempering_is_a_power_of_the_odds() -> None:
    p = torch.tensor([[[0.2, 0.8], [0.5, 0.5]]], dtype=torch.float64)
    tempered = ClassPredictive(p).tempered(2.0).probabilities
    odds = tempered[:, 1] / tempered[:, 0]
    torch.testing.assert_close(odds, torch.tensor([16.0, 1.0], dtype=torch.float64))
    torch.testing.assert_close(ClassPredictive(p).tempered(1.0).probabilities, p[0])


@pytest.mark.parametrize("sureness", [0.5, 3.0])
def test_the_temperature_makes_held_out_rows_more_likely(sureness: float) -> None:
    """Probabilities that are too sure, or not sure enough, by a known power."""
    generator = torch.Generator().manual_seed(0)
    logits = 2.0 * torch.randn(4, 1500, 3, generator=generator, dtype=torch.float64)
    y = torch.multinomial(ClassPredictive(logits.softmax(-1)).probabilities, 1, generator=generator)[:, 0]
    claimed = ClassPredictive((sureness * logits).softmax(-1))
    halves = slice(0, 500), slice(500, 1500)
    temperature = fit_temperature([Part(claimed.rows(half), y[half], torch.ones(len(y[half])).double()) for half in halves])
    assert temperature == pytest.approx(1.0 / sureness, rel=0.2)
    assert claimed.tempered(temperature).log_prob(y).mean() > claimed.log_prob(y).mean()


@pytest.mark.parametrize(("true_scale", "dof"), [(0.25, None), (4.0, None), (1.0, 4.0)])
def test_the_noise_of_held_out_rows_is_found(true_scale: float, dof: float | None) -> None:
    generator = torch.Generator().manual_seed(0)
    means = torch.zeros(8, 4000, 1, dtype=torch.float64)
    claimed = RegressionPredictive(means, torch.full((1, 1, 1), 0.5, dtype=torch.float64))
    y = claimed.with_noise(true_scale, dof).sample(1, generator)[0]
    fit = fit_noise([Part(claimed.rows(slice(n)), part, torch.ones(n)) for n, part in ((1000, y[:1000]), (3000, y[1000:]))])
    assert fit.scale == pytest.approx(true_scale, rel=0.15)
    if dof is None:
        assert fit.dof > 20
    else:
        assert fit.dof == pytest.approx(dof, rel=0.25)
    assert LEAST_DOF <= fit.dof <= MOST_DOF
    assert fit.of(claimed).log_prob(y).mean() > claimed.log_prob(y).mean() - 1e-3


def test_a_few_rows_do_not_move_the_noise_far() -> None:
    claimed = RegressionPredictive(torch.zeros(4, 2, 1), torch.ones(1, 1, 1))
    fit = fit_noise([Part(claimed, torch.zeros(2, 1), torch.ones(2))])
    assert 0.2 < fit.scale < 1.0


def test_a_row_of_weight_two_is_two_rows() -> None:
    means = torch.randn(4, 6, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    claimed = RegressionPredictive(means, torch.eye(2, dtype=torch.float64)[None])
    y = 2.0 * means.flip(0)[0]
    weight = torch.tensor([1.0, 2.0, 1.0, 0.0, 1.0, 1.0])
    index = torch.tensor([0, 1, 1, 2, 4, 5])
    weighted = fit_noise([Part(claimed, y, weight)])
    repeated = fit_noise([Part(claimed.rows(index), y[index], torch.ones(6))])
    assert weighted == pytest.approx(repeated, rel=1e-3)
