"""Regressions to which rows are added, against the normal inverse-gamma posterior written out in NumPy."""

from __future__ import annotations

import numpy as np
import torch
from scipy import stats

from bali.conjugate.regressions import Regressions
from support.networks import randn, seeded
from support.tolerances import EXACT

NOISE, N_NOISE = 0.5, 7.0


def start() -> Regressions:
    eye = torch.eye(3, dtype=torch.float64)
    return Regressions.known(torch.stack([eye, 2.0 * eye]), torch.tensor([NOISE, NOISE]).double(), N_NOISE)


def taken_in(x: torch.Tensor, y: torch.Tensor, before: Regressions) -> Regressions:
    """Two regressions on the same rows, of the columns of y."""
    return before.plus_rows(x.mT @ x, y.mT @ x, y.square().sum(0), len(x))


def rows() -> tuple[torch.Tensor, torch.Tensor]:
    x = randn(20, 3, seed=1)
    return x, x @ randn(3, 2, seed=2) + 0.3 * randn(20, 2, seed=3)


def test_weights_and_noise_have_the_posterior_of_all_rows_at_once() -> None:
    x, y = rows()
    found = taken_in(x[11:], y[11:], taken_in(x[:11], y[:11], start()))
    for number, prior in enumerate((1.0, 2.0)):
        a, b = x.numpy(), y[:, number].numpy()
        # σ² is out of y's marginal Student-t, whose shape is I + X Λ₀⁻¹ Xᵀ: no formula in common with the code.
        shape = np.eye(20) + a @ a.T / prior
        noise = (N_NOISE * NOISE + b @ np.linalg.solve(shape, b)) / (N_NOISE + 2 + 20)
        mean = a.T @ np.linalg.solve(shape, b) / prior
        np.testing.assert_allclose(found.mean[number].numpy(), mean, rtol=1e-10)
        np.testing.assert_allclose(float(found.noise[number]), noise, rtol=1e-10)
    assert found.dof == N_NOISE + 22
    np.testing.assert_allclose(found.expected_noise.numpy(), found.noise.numpy() * 29 / 27, rtol=EXACT)


def test_it_begins_with_the_noise_that_is_given() -> None:
    torch.testing.assert_close(start().expected_noise, torch.full((2,), NOISE).double(), rtol=EXACT, atol=EXACT)


def test_two_that_began_alike_are_put_together() -> None:
    (x, y), begun = rows(), start()
    both = taken_in(x[:5], y[:5], begun).plus(taken_in(x[5:], y[5:], begun), begun)
    whole = taken_in(x, y, begun)
    for a, b in ((both.mean, whole.mean), (both.noise, whole.noise), (both.precision, whole.precision)):
        torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-12)
    assert begun.equals(start())
    assert not begun.equals(whole)


def test_what_fades_leaves_the_prior() -> None:
    x, y = rows()
    whole = taken_in(x, y, start())
    least = start().precision
    half = whole.faded(0.5, least)
    torch.testing.assert_close(half.precision, least + 0.5 * x.mT @ x, rtol=EXACT, atol=EXACT)
    torch.testing.assert_close(half.noise * half.dof / (half.dof - 2), half.expected_noise, rtol=EXACT, atol=EXACT)
    assert half.dof == 2 + (N_NOISE + 20) / 2
    gone = whole.faded(1.0 - 1e-12, least)
    torch.testing.assert_close(gone.precision, least, rtol=1e-9, atol=1e-9)
    assert float(gone.mean.abs().max()) < 1e-9


def test_draws_have_the_marginal_of_a_student_t() -> None:
    x, y = rows()
    found = taken_in(x, y, start())
    weights, variances = found.draw(4000, seeded(0))
    assert weights.shape == (4000, 2, 3)
    spread = torch.linalg.inv(found.precision)[0, 1, 1] * found.noise[0]
    marginal = stats.t(found.dof, float(found.mean[0, 1]), float(spread.sqrt()))
    assert stats.kstest(weights[:, 0, 1].numpy(), marginal.cdf).pvalue > 0.01
    gamma = stats.invgamma(found.dof / 2, scale=found.dof / 2 * float(found.noise[0]))
    assert stats.kstest(variances[:, 0].numpy(), gamma.cdf).pvalue > 0.01
