"""The temperature of class probabilities."""

import math

import pytest
import torch

from bali import LayerwiseInference
from bali.calibration import fit_temperature
from bali.likelihoods import Categorical
from bali.mlp import draw_weights, stacked_mlp, unit_variances
from bali.predictive import ClassPredictive


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
    draw_weights(module, unit_variances([2, 10, 2]), generator)
    inference = LayerwiseInference(module, Categorical(), 1000, generator=generator)
    for _ in range(30):
        inference.step(x, y.long(), sample_weight=(~held_out).double())
    temperature = fit_temperature(inference, x, y.long(), torch.ones(1000).double(), held_out)

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
