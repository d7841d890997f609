"""Noise of each row: found where there is one, and harmless where there is not."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from bali import BALIRegressor
from bali.predictive import metrics
from bali.predictive.likelihood import FamilyLikelihood
from bali.training import table_posterior
from bali.training.table_posterior import RowNoise, _Scale
from support.networks import randn, seeded
from support.oracles import assert_close
from support.tolerances import EXACT


def test_the_written_density_of_residuals_is_the_familys() -> None:
    z, y = 3.0 * randn(4, 30, 2, seed=1), 5.0 * randn(30, 2, seed=2)
    z[0, :3] = 1e4  # beyond what a scale may be
    likelihood = _Scale()
    for found, expected in zip(likelihood.evaluate(z, y), FamilyLikelihood.evaluate(likelihood, z, y), strict=True):
        assert_close(found, expected, EXACT)


#: Logarithms of the noise's standard deviation are −2.007 + 0.678 x₁: the truth has .588 nats, a constant noise .128.
LEVEL, SLOPE = -2.007, 0.678


def table(n: int, seed: int, slope: float = SLOPE) -> tuple[Tensor, Tensor, Tensor]:
    """x, the means and the residuals."""
    x = torch.randn(n, 4, generator=seeded(seed), dtype=torch.float64)
    residual = torch.exp(LEVEL + slope * x[:, 1:2]) * torch.randn(n, 1, generator=seeded(seed + 1), dtype=torch.float64)
    return x, torch.sin(x[:, :1]) + 0.5 * x[:, 2:3], residual


def learn_row_noise(
    x: Tensor, mean: Tensor, residual: Tensor, weight: Tensor, generator: torch.Generator
) -> RowNoise | None:
    found = table_posterior.learn_row_noise(x, mean, residual, weight, generator)
    return None if found is None else found[0]


def log_likelihood(
    found: RowNoise | None, known: tuple[Tensor, Tensor, Tensor], new: tuple[Tensor, Tensor, Tensor]
) -> float:
    """Gaussian, of new rows, with the scale that the known residuals have."""

    def standard(rows: tuple[Tensor, Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        x, mean, residual = rows
        scale = torch.ones_like(residual) if found is None else found(x, mean)
        return residual / scale, scale

    size = standard(known)[0].square().mean().sqrt()
    white, scale = standard(new)
    return float((-0.5 * (white / size).square() - (size * scale).log()).mean()) - 0.5 * math.log(2 * math.pi)


def test_noise_that_depends_on_a_column_is_found() -> None:
    known, new = table(2000, 0), table(4000, 10)
    assert log_likelihood(None, known, new) == pytest.approx(0.128, abs=0.08)
    found = learn_row_noise(*known, torch.ones(2000).double(), seeded(0))
    assert found is not None
    assert log_likelihood(found, known, new) > 0.55  # of .588
    assert found.gain > 0.2


def test_scales_that_come_with_it_are_no_closer_to_their_residuals_than_those_of_new_rows() -> None:
    """Mean over draws. Networks know the residuals that they learnt from too well."""
    errors = []
    for seed in (0, 3, 4, 5):
        known, new = table(200, 100 * seed, slope=0.3), table(4000, 100 * seed + 50, slope=0.3)
        found = table_posterior.learn_row_noise(*known, torch.ones(200).double(), seeded(seed))
        assert found is not None
        scales = found[0](*known[:2]), found[1], found[0](*new[:2])
        rows = zip((known[2], known[2], new[2]), scales, strict=True)
        errors.append([float((0.5 * (residual / scale).square() + scale.log()).mean()) for residual, scale in rows])
    learnt, unseen, of_new = np.mean(errors, axis=0)
    assert learnt < unseen - 0.02
    assert unseen > of_new - 0.02


def test_constant_noise_costs_little() -> None:
    """On average over tables; where the gain is not clear, nothing is learnt at all."""
    costs = []
    for seed in range(6):
        known, new = table(400, 100 * seed, slope=0.0), table(4000, 100 * seed + 50, slope=0.0)
        found = learn_row_noise(*known, torch.ones(400).double(), seeded(seed))
        costs.append(log_likelihood(None, known, new) - log_likelihood(found, known, new))
    assert np.mean(costs) < 0.005


def test_a_few_residuals_tell_nothing() -> None:
    assert learn_row_noise(*table(39, 0, slope=3.0), torch.ones(39).double(), seeded(0)) is None


def test_units_of_the_residuals_do_not_matter() -> None:
    x, mean, residual = table(300, 0)
    one, other = (learn_row_noise(x, mean, c * residual, torch.ones(300).double(), seeded(0)) for c in (1.0, 1e-3))
    assert one is not None
    assert other is not None
    torch.testing.assert_close(other(x, mean), 1e-3 * one(x, mean), rtol=1e-6, atol=0.0)


def test_rows_without_weight_say_nothing() -> None:
    x, mean, residual = table(300, 0)
    weight = (torch.arange(300) < 200).double()
    spoilt = torch.where(weight[:, None] > 0, residual, 1e-3 * residual)
    found = [learn_row_noise(x, mean, r, weight, seeded(0)) for r in (residual, spoilt)]
    scales = [f(x, mean) for f in found if f is not None]
    assert len(scales) == 2
    # Only the unit, a median of all, may differ.
    ratio = scales[0] / scales[1]
    assert float(ratio.log().std()) < 0.35


SHORT: dict[str, Any] = {"hidden_layer_sizes": (32, 32), "n_bins": 0, "n_members": 4, "max_iter": 400}


@pytest.mark.parametrize(("settings", "least"), [(SHORT, 0.47), pytest.param({}, 0.53, marks=pytest.mark.slow)])
def test_a_regressor_finds_it(settings: dict[str, Any], least: float) -> None:
    """And the means beside it, whose error costs more when training is short."""
    (x, mean, residual), (new_x, new_mean, new_residual) = table(2000, 0), table(4000, 10)
    model = BALIRegressor(**settings, random_state=0).fit(x.numpy(), (mean + residual)[:, 0].numpy())
    assert model.posterior_.row_noise is not None
    assert "of each row its own" in model.health().chosen["noise"]
    predictive = model.pred_dist(new_x.numpy())
    assert metrics.log_likelihood(predictive, (new_mean + new_residual)[:, 0].numpy()) > least
    ratio = predictive.aleatoric[new_x[:, 1] > 1].mean() / predictive.aleatoric[new_x[:, 1] < -1].mean()
    assert ratio > 4.0
