"""Noise that depends on the row, against SciPy and by samples."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from scipy import integrate, optimize, stats
from torch import Tensor

from bali.predictive.mixtures import RegressionPredictive
from support.networks import seeded
from support.oracles import Array, array, assert_close, assert_mean, normal, positive_definite
from support.tolerances import EXACT

S, N, D = 3, 4, 2
DOFS = pytest.mark.parametrize("dof", [None, 5.0])


def made(dof: float | None = None, n_noises: int = 1, *, inflated: bool = True) -> RegressionPredictive:
    rng = np.random.default_rng(0)
    means = normal(rng, S, N, D)
    noise = positive_definite(rng, D, (n_noises,))
    inflation = 1.0 + normal(rng, S, N).square() if inflated else None
    scale = normal(rng, N, D).exp()
    return RegressionPredictive(means, noise, inflation, dof, scale)


def targets() -> Tensor:
    return normal(np.random.default_rng(1), N, D)


def shape(p: RegressionPredictive, s: int, n: int) -> Array:
    """Covariance, or a Student-t's shape matrix, of one component at one row."""
    assert p.row_scale is not None
    rows = np.diag(array(p.row_scale[n]))
    inflation = 1.0 if p.inflation is None else float(p.inflation[s, n])
    return inflation * rows @ array(p.noise[s % len(p.noise)]) @ rows


def marginal(p: RegressionPredictive, s: int, n: int, d: int) -> stats.rv_continuous:
    scale = math.sqrt(shape(p, s, n)[d, d])
    law = stats.norm if p.dof is None else stats.t(p.dof)
    return law(float(p.means[s, n, d]), scale) if p.dof is None else stats.t(p.dof, float(p.means[s, n, d]), scale)


@DOFS
@pytest.mark.parametrize("n_noises", [1, S])
@pytest.mark.parametrize("inflated", [True, False])
def test_density(dof: float | None, n_noises: int, inflated: bool) -> None:
    p, y = made(dof, n_noises, inflated=inflated), targets()
    found = p.component_log_prob(y)
    for s in range(S):
        for n in range(N):
            at = array(p.means[s, n]), shape(p, s, n)
            law = stats.multivariate_normal(*at) if dof is None else stats.multivariate_t(*at, dof)  # type: ignore[arg-type]
            assert_close(found[s, n], float(law.logpdf(array(y[n]))), EXACT)


@DOFS
def test_distribution_function_and_quantiles(dof: float | None) -> None:
    p, y = made(dof), targets()
    cdf, found = p.cdf(y), p.quantiles([0.05, 0.7])
    for n in range(N):
        for d in range(D):
            laws = [marginal(p, s, n, d) for s in range(S)]
            mixed = lambda t, laws=laws: float(np.mean([law.cdf(t) for law in laws]))  # noqa: E731
            assert_close(cdf[n, d], mixed(float(y[n, d])), 1e-9)
            for level, value in zip((0.05, 0.7), found[:, n, d].tolist(), strict=True):
                expected = optimize.brentq(lambda t, level=level, mixed=mixed: mixed(t) - level, -1e3, 1e3, xtol=1e-12)
                assert value == pytest.approx(expected, abs=1e-6)


@DOFS
def test_crps_is_the_integral(dof: float | None) -> None:
    p, y = made(dof), targets()
    found = p.crps(y)
    for n, d in ((0, 0), (1, 1)):
        laws, at = [marginal(p, s, n, d) for s in range(S)], float(y[n, d])

        def below(t: float, laws: list[stats.rv_continuous] = laws) -> float:
            return float(np.mean([law.cdf(t) for law in laws])) ** 2

        def above(t: float, laws: list[stats.rv_continuous] = laws) -> float:
            return float(np.mean([law.sf(t) for law in laws])) ** 2

        expected = integrate.quad(below, -np.inf, at)[0] + integrate.quad(above, at, np.inf)[0]
        assert float(found[n, d]) == pytest.approx(expected, rel=1e-4)


@DOFS
def test_moments_and_samples(dof: float | None) -> None:
    p = made(dof, S)
    tail = 1.0 if dof is None else dof / (dof - 2)
    for n in range(N):
        centred = array(p.means[:, n] - p.mean[n])
        expected = np.mean([tail * shape(p, s, n) for s in range(S)], axis=0) + centred.T @ centred / S
        assert_close(p.covariance[n], expected, EXACT)
        assert_close((p.epistemic + p.aleatoric)[n], np.diag(expected), EXACT)
    assert p.row_scale is not None
    noise = tail * p.noise.diagonal(dim1=-2, dim2=-1).mean(0)
    assert_close(p.aleatoric, noise * p.row_scale.square(), EXACT)
    draws = array(p.sample(40_000, seeded(0)))
    assert_mean(draws, array(p.mean))
    centred = draws - array(p.mean)
    if dof is None:  # products of a Student-t's draws have no error to go by
        assert_mean(np.einsum("kni,knj->knij", centred, centred), array(p.covariance))


def test_units_rows_components_and_parts() -> None:
    p, y = made(5.0), targets()
    scale, shift = torch.tensor([3.0, 0.5]).double(), torch.tensor([-1.0, 2.0]).double()
    affine = p.affine(scale, shift)
    assert_close(affine.log_prob(y * scale + shift), p.log_prob(y) - float(scale.log().sum()), EXACT)
    assert_close(affine.std, p.std * scale, EXACT)
    assert_close(affine.quantiles(0.3), p.quantiles(0.3) * scale + shift, 1e-6)
    index = torch.tensor([2, 0])
    assert_close(p.rows(index).log_prob(y[index]), p.log_prob(y)[index], EXACT)
    assert_close(p.rows(slice(1, 3)).std, p.std[1:3], EXACT)
    joined = p.rows(slice(0, 1)).joined([p.rows(slice(1, 3)), p.rows(slice(3, None))])
    assert_close(joined.log_prob(y), p.log_prob(y), EXACT)
    assert_close(p.components(torch.tensor([1])).log_prob(y), p.component_log_prob(y)[1], EXACT)


def test_scales_of_one_are_no_scales() -> None:
    p, y = made(5.0), targets()
    ones = RegressionPredictive(p.means, p.noise, p.inflation, p.dof, torch.ones(N, D).double())
    plain = RegressionPredictive(p.means, p.noise, p.inflation, p.dof)
    for one, other in (
        (ones.log_prob(y), plain.log_prob(y)),
        (ones.std, plain.std),
        (ones.covariance, plain.covariance),
        (ones.crps(y), plain.crps(y)),
    ):
        assert_close(one, other, EXACT)
