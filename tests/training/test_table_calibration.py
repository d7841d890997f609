"""What held-out rows tell: against direct maximisation of the same objective."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy.optimize import minimize_scalar
from torch import Tensor

from bali.predictive.likelihoods import Categorical, Gaussian
from bali.predictive.mixtures import ClassPredictive, RegressionPredictive
from bali.training.fit_calibration import WIDTHS, likely_width
from bali.training.table_calibration import calibrated, held_out_predictions, in_common
from bali.training.table_posterior import TablePosterior
from support.networks import randn, seeded
from support.stacked import stack, with_ones

TRUTH = torch.tensor([[1.0], [-0.5], [0.3]]).double()


def linear(n: int, noise: float, own_error: float, k: int, seed: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    """Rows x and y of a linear law, and weights (K, 3, 1) of members with an error of their own."""
    x = randn(n, 2, seed=seed)
    y = with_ones(x) @ TRUTH + noise * randn(n, 1, seed=seed + 1)
    return x, y, TRUTH + own_error * randn(k, 3, 1, seed=seed + 2)


def fitted(x: Tensor, y: Tensor, means: Tensor, held_out: Tensor, weight: Tensor | None = None) -> TablePosterior:
    many = randn(2000, 2, seed=99)  # so many rows that output layers are known
    weight = torch.ones(len(x)).double() if weight is None else weight
    return calibrated([stack([means], many)], [Gaussian()], [x], y, weight, held_out, seed=0)


def objective(posterior: TablePosterior, x: Tensor, y: Tensor, start: Tensor, scale: float, dof: float) -> float:
    """Log-likelihood of the rows, with priors of scale and degrees of freedom; a scale of one is the residuals' own."""
    at = replace(posterior, noise=start * scale**2, noise_dof=dof).predictive([x], 1)
    prior = -0.5 * (math.log(scale) / 0.5) ** 2 - 0.5 * math.log(dof / 10.0) ** 2
    return float(at.log_prob(y).sum()) + prior


@pytest.mark.parametrize("heavy", [False, True])
def test_noise_and_tails_are_the_most_likely_ones(heavy: bool) -> None:
    """All members hold out all rows, fewer than noise of each row is learnt from."""
    x, y, means = linear(39, 0.4, 0.0, 2)
    if heavy:
        y = y + torch.where(torch.arange(39)[:, None] % 9 == 0, 3.0, 0.0)
    found = fitted(x, y, means, torch.ones(1, 39, dtype=torch.bool))
    assert found.row_noise is None
    assert found.noise is not None
    assert found.noise_dof is not None
    residual = y - with_ones(x) @ means[0]
    start = residual.mT @ residual / 39
    scale = float((found.noise / start).sqrt())

    def best(dof: float) -> float:
        loss = lambda s: -objective(found, x, y, start, math.exp(s), dof)  # noqa: E731
        return -float(minimize_scalar(loss, bounds=(-1.5, 1.0), method="bounded").fun)

    reached = objective(found, x, y, start, scale, found.noise_dof)
    # Scales are tried in steps of 5 %, degrees of freedom by a few values.
    assert reached > max(best(dof) for dof in np.geomspace(3.0, 300.0, 13)) - 0.25
    if heavy:
        assert found.noise_dof <= 6.0


def test_a_row_of_weight_two_is_two_rows() -> None:
    x, y, means = linear(30, 0.4, 0.1, 2)
    times = torch.arange(30) % 2 + 1
    weighted = fitted(x[:19], y[:19], means, torch.ones(1, 19, dtype=torch.bool), times[:19].double())
    x_again, y_again = (part[:19].repeat_interleave(times[:19], 0) for part in (x, y))
    repeated = fitted(x_again, y_again, means, torch.ones(1, 28, dtype=torch.bool))
    assert weighted.noise is not None
    assert repeated.noise is not None
    torch.testing.assert_close(weighted.noise, repeated.noise)
    assert weighted.noise_dof == repeated.noise_dof


def test_a_mixture_of_all_members_has_less_noise_than_the_few_that_hold_a_row_out() -> None:
    """Its scale is near the best for new rows, of which it has seen none."""
    k, groups, n = 10, 5, 300
    x, y, means = linear(n, 0.3, 0.25, k)
    found = fitted(x, y, means, torch.arange(n) % groups == torch.arange(groups)[:, None])
    new_x, new_y, _ = linear(4000, 0.3, 0.0, k, seed=50)
    assert found.noise is not None

    def score(c: float) -> float:
        at = replace(found, noise=found.noise * c) if found.noise is not None else found
        return float(at.predictive([new_x], 1).log_prob(new_y).mean())

    assert score(1.0) > max(score(c) for c in np.geomspace(0.3, 3.0, 15)) - 0.025
    of_pairs = torch.stack([with_ones(x) @ means[[g, g + groups]].mean(0) - y for g in range(groups)]).square().mean()
    assert float(found.predictive([new_x], 1).aleatoric.mean()) < float(of_pairs)


@pytest.mark.parametrize(("n", "sees"), [(400, 1), (1200, 0)])
def test_many_held_out_rows_tell_in_which_way_the_noise_sees_them(n: int, sees: int) -> None:
    """The noise goes by a column that the other way has with errors; fewer rows are shown as was said."""
    x, means = randn(n, 2, seed=0), torch.tensor([[1.0], [0.0], [0.3]]).double().repeat(2, 1, 1)
    y = with_ones(x) @ means[0] + 0.3 * torch.exp(x[:, 1:]) * randn(n, 1, seed=7)
    other = x + torch.tensor([0.0, 1.0]) * randn(n, 2, seed=8)
    stacks, weight = [stack([means], randn(2000, 2, seed=99))], torch.ones(n).double()
    found = calibrated(stacks, [Gaussian()], [x, other], y, weight, torch.ones(1, n, dtype=torch.bool), 0, noise_sees=1)
    assert found.row_noise is not None
    assert found.row_noise.sees == sees


def test_models_are_compared_by_mixtures_of_as_many_members() -> None:
    x, y, means = linear(60, 0.3, 0.2, 10)
    few, more = (torch.arange(60) % 10 == torch.arange(g)[:, None] for g in (1, 5))
    one, other = fitted(x, y, means[:4], few), fitted(x, y, means, more)
    common = in_common((one, few), (other, more))
    assert common == (1, 2)
    for posterior, held_out in ((one, few), (other, more)):
        parts = held_out_predictions(posterior, [x], y, torch.ones(60).double(), held_out, common)
        assert [part.predictive.n_components for part in parts] == [2]
        torch.testing.assert_close(parts[0].y, y[::10])


def test_without_held_out_rows_the_residuals_have_to_do() -> None:
    x, y, means = linear(200, 0.3, 0.0, 2)
    found = fitted(x, y, means, torch.zeros(1, 200, dtype=torch.bool))
    residual = y - with_ones(x) @ means[0]
    assert found.noise is not None
    torch.testing.assert_close(found.noise, residual.mT @ residual / 200, rtol=1e-6, atol=1e-8)


def test_several_outputs_have_a_covariance() -> None:
    n = 400
    x = randn(n, 2, seed=1)
    root = torch.tensor([[0.3, 0.0], [0.24, 0.18]]).double()
    weights = torch.cat([TRUTH, -TRUTH], 1)
    y = with_ones(x) @ weights + randn(n, 2, seed=2) @ root.mT
    found = fitted(x, y, weights.repeat(2, 1, 1), torch.ones(1, n, dtype=torch.bool))
    predictive = found.predictive([x], 1)
    assert isinstance(predictive, RegressionPredictive)
    torch.testing.assert_close(predictive.covariance.mean(0), root @ root.mT, rtol=0.2, atol=0.01)


def test_classes_have_the_widest_posterior_that_costs_nothing_and_its_best_temperature() -> None:
    n, k = 300, 4
    x = randn(n, 2, seed=1)
    truth = with_ones(x) @ torch.cat([TRUTH, -TRUTH], 1)
    y = (torch.rand(n, generator=seeded(5)).double() > truth.softmax(-1)[:, 0]).long()
    means = 3.0 * torch.cat([TRUTH, -TRUTH], 1) + 0.1 * randn(k, 3, 2, seed=3)  # too sure
    held_out = torch.arange(n) % 2 == torch.arange(2)[:, None]
    stacks = [stack([means], x, curvature=0.2)]
    found = calibrated(stacks, [Categorical()], [x], y, torch.ones(n).double(), held_out, seed=0)

    def score(width: float, temperature: float) -> float:
        total = 0.0
        for group in range(2):
            rows = held_out[group].nonzero()[:, 0]
            at = replace(found, width=width, temperature=1.0).predictive([x[rows]], 32, [group, group + 2])
            assert isinstance(at, ClassPredictive)
            total += float(at.tempered(temperature).log_prob(y[rows]).sum())
        return total - 0.5 * (math.log(temperature) / 0.3) ** 2

    def best(width: float) -> tuple[float, float]:
        fit = minimize_scalar(lambda t: -score(width, math.exp(t)), bounds=(-2.0, 2.0), method="bounded")
        return -float(fit.fun), math.exp(fit.x)

    assert found.temperature == pytest.approx(best(found.width)[1], rel=0.02)
    assert found.temperature < 0.8

    def without_prior(width: float) -> float:
        temperature = best(width)[1]
        return score(width, temperature) + 0.5 * (math.log(temperature) / 0.3) ** 2

    assert found.width == pytest.approx(likely_width(WIDTHS, without_prior), rel=0.05)
