"""A mixture of numbers as they are and of logarithms, against SciPy's distributions of its parts."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch
from scipy import integrate, stats

from bali.predictive.mixtures import RegressionPredictive
from bali.predictive.two_scales import TwoScalePredictive, on_two_scales

N = 4
LOG_WIDTH = 1.5


def of_y(dof: float | None = 5.0) -> RegressionPredictive:
    generator = torch.Generator().manual_seed(0)
    means = 3.0 + torch.randn(2, N, 1, generator=generator, dtype=torch.float64)
    inflation = 1.0 + torch.rand(2, N, generator=generator, dtype=torch.float64)
    return RegressionPredictive(means, torch.tensor([[[0.5]]], dtype=torch.float64), inflation, dof)


def of_log(dof: float | None = None) -> RegressionPredictive:
    generator = torch.Generator().manual_seed(1)
    means = 0.8 + 0.3 * torch.randn(3, N, 1, generator=generator, dtype=torch.float64)
    scale = 0.5 + torch.rand(N, 1, generator=generator, dtype=torch.float64)
    return RegressionPredictive(means, torch.tensor([[[0.09]]], dtype=torch.float64), None, dof, scale)


def mixture(dof: float | None = 5.0, log_dof: float | None = None) -> TwoScalePredictive:
    return on_two_scales([(of_y(dof), False), (of_log(log_dof), True)], LOG_WIDTH)


def scipy_parts(row: int) -> list[object]:
    """The five components of a row with Student-t's of y and Gaussians of log y."""
    plain, logs = of_y(), of_log()
    assert plain.inflation is not None
    assert logs.row_scale is not None
    first = [stats.t(5.0, plain.means[s, row, 0].item(), math.sqrt(0.5 * plain.inflation[s, row].item())) for s in range(2)]
    widths = 0.3 * logs.row_scale[row, 0].item()
    return first + [stats.lognorm(widths, scale=math.exp(logs.means[s, row, 0].item())) for s in range(3)]


def test_density_distribution_function_and_moments_are_scipys() -> None:
    found, y = mixture(), torch.tensor([0.3, 2.0, 3.5, 9.0], dtype=torch.float64)
    for row in range(N):
        parts, at = scipy_parts(row), y[row].item()
        assert found.log_prob(y)[row].exp().item() == pytest.approx(np.mean([p.pdf(at) for p in parts]), rel=1e-9)  # type: ignore[attr-defined]
        assert found.cdf(y)[row].item() == pytest.approx(np.mean([p.cdf(at) for p in parts]), abs=1e-9)  # type: ignore[attr-defined]
        means, variances = ([getattr(p, what)() for p in parts] for what in ("mean", "var"))
        assert found.mean[row].item() == pytest.approx(np.mean(means), rel=1e-9)
        assert found.variance[row].item() == pytest.approx(np.mean(variances) + np.var(means), rel=1e-9)
        assert found.covariance.shape == (N, 1, 1)


@pytest.mark.parametrize("level", [0.01, 0.5, 0.99])
def test_quantiles_undo_the_distribution_function(level: float) -> None:
    found = mixture(5.0, 4.0)
    torch.testing.assert_close(found.cdf(found.quantiles(level)[0]), torch.full((N, 1), level, dtype=torch.float64))


def test_crps_is_the_integral() -> None:
    found, y = mixture(), torch.tensor([0.3, 2.0, 3.5, 9.0], dtype=torch.float64)
    for row in range(N):
        parts, at = scipy_parts(row), y[row].item()

        def squared(t: float, parts: list[object] = parts, at: float = at) -> float:
            return float(np.mean([p.cdf(t) for p in parts]) - (t >= at)) ** 2  # type: ignore[attr-defined]

        ends = [-60.0, 0.0, at, 8.0, 200.0] if at < 8.0 else [-60.0, 0.0, 8.0, at, 200.0]
        total = sum(integrate.quad(squared, a, b, limit=200)[0] for a, b in itertools.pairwise(ends))
        assert found.crps(y)[row].item() == pytest.approx(total, rel=2e-4)


def test_negative_numbers_have_no_logarithm() -> None:
    alone = on_two_scales([(of_log(), True)], LOG_WIDTH)
    below = torch.full((N,), -1.0, dtype=torch.float64)
    assert bool((alone.log_prob(below) == -torch.inf).all())
    assert bool((alone.cdf(below) == 0.0).all())
    assert bool(mixture().log_prob(below).isfinite().all())


def test_samples_have_the_moments() -> None:
    found = mixture(6.0, 8.0)
    draws = found.sample(200_000, torch.Generator().manual_seed(0))
    torch.testing.assert_close(draws.mean(0), found.mean, rtol=0.02, atol=0.0)
    torch.testing.assert_close(draws.std(0), found.std, rtol=0.05, atol=0.0)


def test_tails_of_logarithms_are_a_mixture_that_has_a_mean() -> None:
    """Five Gaussians come near the Student-t's density, and their exp has all moments."""
    found = on_two_scales([(of_log(4.0), True)], LOG_WIDTH)
    assert bool((found.std.isfinite() & (found.std > on_two_scales([(of_log(), True)], LOG_WIDTH).std)).all())
    y = torch.tensor([1.0, 2.0, 3.0, 5.0], dtype=torch.float64)
    exact = of_log(4.0).log_prob(y.log()) - y.log()
    torch.testing.assert_close(found.log_prob(y), exact, rtol=0.0, atol=0.15)


def test_what_weights_add_is_epistemic() -> None:
    found = mixture()
    torch.testing.assert_close(found.epistemic + found.aleatoric, found.variance)
    wider = of_y()
    assert wider.inflation is not None
    far = RegressionPredictive(wider.means, wider.noise, 10.0 * wider.inflation, wider.dof)
    unsure = on_two_scales([(far, False), (of_log(), True)], LOG_WIDTH)
    torch.testing.assert_close(unsure.aleatoric, found.aleatoric)
    assert bool((unsure.epistemic > 2.0 * found.epistemic).all())


def test_widths_of_logarithms_are_bounded() -> None:
    logs = of_log()
    far = RegressionPredictive(logs.means, logs.noise, torch.full((3, N), 1e6, dtype=torch.float64), None, logs.row_scale)
    most = (logs.means + 0.5 * LOG_WIDTH**2).exp().mean(0)
    torch.testing.assert_close(on_two_scales([(far, True)], LOG_WIDTH).mean, most)


def test_as_gaussians_has_the_same_moments() -> None:
    found = mixture()
    same = found.as_gaussians()
    torch.testing.assert_close(same.mean, found.mean)
    torch.testing.assert_close(same.aleatoric, found.aleatoric)


def test_rows_and_parts_of_it() -> None:
    found = mixture(5.0, 4.0)
    y = torch.tensor([0.3, 2.0, 3.5, 9.0], dtype=torch.float64)
    torch.testing.assert_close(found.rows(slice(1, 3)).log_prob(y[1:3]), found.log_prob(y)[1:3])
    torch.testing.assert_close(found.rows(slice(0, 1)).joined([found.rows(slice(1, 4))]).mean, found.mean)
    assert bool((found.tempered(4.0).aleatoric < found.aleatoric).all())
