"""The temperature of class probabilities."""

import math

import pytest
import torch

from bali import LayerwiseInference
from bali.estimators.mlp import draw_initial_weights, stacked_mlp, unit_variances
from bali.predictive.likelihoods import Categorical
from bali.predictive.mixtures import ClassPredictive, RegressionPredictive
from bali.training.calibration import LEAST_DOF, MOST_DOF, fit_noise, fit_temperature
from bali.training.held_out import Part, predict_held_out


def test_tempering_is_a_power_of_the_odds() -> None:
    p = torch.tensor([[[0.2, 0.8], [0.5, 0.5]]], dtype=torch.float64)
    tempered = ClassPredictive(p).tempered(2.0).probabilities
    odds = tempered[:, 1] / tempered[:, 0]
    torch.testing.assert_close(odds, torch.tensor([16.0, 1.0], dtype=torch.float64))
    torch.testing.assert_close(ClassPredictive(p).tempered(1.0).probabilities, p[0])


@pytest.mark.parametrize("flip", [0.02, 0.25])
def test_the_temperature_makes_held_out_rows_more_likely(flip: float) -> None:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(1000, 2, generator=generator, dtype=torch.float64)
    y = (x[:, 0] > 0) ^ (torch.rand(1000, generator=generator) < flip)
    held_out = torch.zeros(2, 1000, dtype=torch.bool)
    held_out[0, :300], held_out[1, 300:600] = True, True
    module = stacked_mlp(2, [2, 10, 2], "tanh").double()
    draw_initial_weights(module, unit_variances([2, 10, 2]), generator)
    inference = LayerwiseInference(module, Categorical(), 1000, generator=generator)
    for _ in range(30):
        inference.step(x, y.long(), sample_weight=(~held_out).double())
    found = predict_held_out(inference.posterior(), x, y.long(), torch.ones(1000).double(), held_out, n_samples=32)
    temperature = fit_temperature(found.parts([0]))

    def score(power: float) -> float:
        total = 0.0
        for fold in range(2):
            rows = held_out[fold]
            predictive = inference.take_members([fold]).predict(x[rows], 32)
            assert isinstance(predictive, ClassPredictive)
            total += float(predictive.tempered(power).log_prob(y[rows]).sum())
        return total

    assert abs(math.log(temperature)) > 0.01
    assert score(temperature) > score(1.0)


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
