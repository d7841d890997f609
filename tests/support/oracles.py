"""Independent answers for the conjugate algebra: SciPy densities and dense textbook formulas in NumPy.

Nothing here uses a Cholesky factor, a solve or a formula of the package: covariances are inverted, Kronecker products
are formed and residuals are taken row by row. Random problems come from a seed.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from hypothesis import settings
from hypothesis import strategies as st
from scipy import special, stats
from torch import Tensor

from bali.conjugate.averages import averaged
from bali.conjugate.mniw import MNIW
from bali.conjugate.moments import Moments
from bali.conjugate.symmetric import Diagonal, Symmetric
from support.tolerances import EXACT, SMALLEST_P_VALUE
from support.tolerances import STANDARD_ERRORS as STANDARD_ERRORS

Array = npt.NDArray[np.floating[Any]]

fast = settings(max_examples=25, deadline=None)
seeds = st.integers(0, 2**32 - 1)
sizes = st.integers(1, 4)


# --- comparing ------------------------------------------------------------------------------------------------------


def array(numbers: Tensor | Symmetric) -> Array:
    """In float64; of a symmetric matrix, all its entries."""
    tensor = numbers.dense() if isinstance(numbers, Symmetric) else numbers
    return tensor.detach().to(torch.float64).numpy()


Numbers = Tensor | Symmetric | Array | float


def assert_close(actual: Numbers, expected: Numbers, tolerance: float = EXACT) -> None:
    """Equal shapes, and differences below `tolerance` times the largest entry expected (or 1, for smaller ones)."""
    a, e = (array(v) if isinstance(v, Tensor | Symmetric) else np.asarray(v, dtype=np.float64) for v in (actual, expected))
    assert a.shape == e.shape
    np.testing.assert_allclose(a, e, rtol=0.0, atol=tolerance * max(1.0, float(np.abs(e).max(initial=0.0))))


def relative_error(actual: Tensor, expected: Tensor) -> float:
    return float(np.linalg.norm(array(actual) - array(expected)) / np.linalg.norm(array(expected)))


def assert_mean(samples: Array, expected: Array) -> None:
    """The mean over the first axis is as near to the expected one as its standard error lets one hope."""
    assert samples.shape[1:] == expected.shape
    error = samples.std(axis=0, ddof=1) / math.sqrt(len(samples))
    np.testing.assert_array_less(np.abs(samples.mean(axis=0) - expected), STANDARD_ERRORS * error)


def assert_distributed(samples: Array, distribution: object) -> None:
    assert stats.kstest(samples, distribution.cdf).pvalue > SMALLEST_P_VALUE  # type: ignore[attr-defined]


# --- random problems ------------------------------------------------------------------------------------------------


def normal(rng: np.random.Generator, *shape: int) -> Tensor:
    return torch.from_numpy(rng.standard_normal(shape))


def positive_definite(rng: np.random.Generator, d: int, batch: Sequence[int] = ()) -> Tensor:
    a = normal(rng, *batch, d, d + 2)
    return a @ a.mT / d + 0.5 * torch.eye(d, dtype=torch.float64)


def random_mniw(
    rng: np.random.Generator, n_inputs: int, n_outputs: int, batch: Sequence[int] = (), *, diagonal: bool = False
) -> MNIW:
    """A distribution with non-zero mean, dense precision (or a diagonal one) and a dof that is no integer."""
    entries = positive_definite(rng, n_inputs, batch)
    precision = Diagonal(entries.diagonal(dim1=-2, dim2=-1).clone(), "MNIW: precision") if diagonal else entries
    dof = torch.from_numpy(np.asarray(n_outputs + rng.uniform(0.5, 6.0, size=tuple(batch))))
    scale = positive_definite(rng, n_outputs, batch)
    return MNIW(normal(rng, *batch, n_inputs, n_outputs), precision, scale, dof if batch else float(dof))


class Problem(NamedTuple):
    prior: MNIW
    x: Tensor
    y: Tensor

    @property
    def moments(self) -> Moments:
        return Moments.of(self.x, self.y, bias=False)


def random_problem(seed: int, n_inputs: int = 3, n_outputs: int = 2, n: int = 7, *, diagonal: bool = False) -> Problem:
    rng = np.random.default_rng(seed)
    prior = random_mniw(rng, n_inputs, n_outputs, diagonal=diagonal)
    return Problem(prior, normal(rng, n, n_inputs), 2.0 * normal(rng, n, n_outputs))


problems = st.builds(random_problem, seeds, sizes, sizes, st.integers(1, 8), diagonal=st.booleans())


# --- textbook -------------------------------------------------------------------------------------------------------


class Dense(NamedTuple):
    """An MNIW by its row covariance R instead of the precision, in NumPy."""

    mean: Array
    rows: Array
    scale: Array
    dof: float


def dense(q: MNIW) -> Dense:
    return Dense(array(q.mean), np.linalg.inv(array(q.precision)), array(q.scale), float(q.dof))


def vec(matrix: Array) -> Array:
    """Columns stacked."""
    return matrix.reshape(-1, order="F")


def posterior(prior: Dense, x: Array, y: Array, weight: float = 1.0) -> Dense:
    """Rows that count `weight` times each; U from the residuals and the departure from the prior, all squares."""
    precision = np.linalg.inv(prior.rows)
    rows = np.linalg.inv(precision + weight * x.T @ x)
    mean = rows @ (precision @ prior.mean + weight * x.T @ y)
    residual, departure = y - x @ mean, mean - prior.mean
    scale = prior.scale + weight * residual.T @ residual + departure.T @ precision @ departure
    return Dense(mean, rows, scale, prior.dof + weight * len(x))


def log_prob_noise(q: Dense, noise: Array) -> float:
    return float(stats.invwishart.logpdf(noise, df=q.dof, scale=q.scale))


def log_prob_scipy(q: Dense, weights: Array, noise: Array) -> float:
    given_noise = stats.matrix_normal.logpdf(weights, mean=q.mean, rowcov=q.rows, colcov=noise)
    return float(given_noise) + log_prob_noise(q, noise)


def log_prob_kronecker(q: Dense, weights: Array, noise: Array) -> float:
    given_noise = stats.multivariate_normal.logpdf(vec(weights), vec(q.mean), np.kron(noise, q.rows))
    return float(given_noise) + log_prob_noise(q, noise)


def log_likelihood(x: Array, y: Array, weights: Array, noise: Array) -> float:
    residuals = y - x @ weights
    return float(sum(stats.multivariate_normal.logpdf(r, np.zeros(len(r)), noise) for r in residuals))


def student_t(q: Dense, x: Array) -> tuple[Array, Array, float]:
    """Location, shape and dof for one row: y | Σ ~ N(Mᵀx, (1 + xᵀRx)Σ), integrated over Σ ~ W⁻¹(U, u)."""
    dof = q.dof - q.mean.shape[1] + 1
    return q.mean.T @ x, (1.0 + x @ q.rows @ x) * q.scale / dof, dof


def student_t_log_density(y: Array, location: Array, shape: Array, dof: float) -> float:
    return float(stats.multivariate_t(location, shape, dof).logpdf(y))  # type: ignore[arg-type]  # stubs want int dof


def log_evidence_chain(prior: Dense, x: Array, y: Array) -> float:
    """p(Y|X) = Π p(y_n | x_n, rows before n), each a Student-t."""
    total, q = 0.0, prior
    for n in range(len(x)):
        total += student_t_log_density(y[n], *student_t(q, x[n]))
        q = posterior(q, x[n : n + 1], y[n : n + 1])
    return total


def expected_log_prob(q: Dense, p: Dense) -> float:
    """E_q[log p(W, Σ)], term by term from E_q[log|Σ|], E_q[Σ⁻¹] and E_q[(W−M_p)Σ⁻¹(W−M_p)ᵀ]."""
    d_x, d_y = q.mean.shape
    index = np.arange(d_y)
    log_det = np.linalg.slogdet(q.scale)[1] - d_y * math.log(2) - special.digamma((q.dof - index) / 2).sum()
    inverse = q.dof * np.linalg.inv(q.scale)
    apart = q.mean - p.mean
    outer = d_y * q.rows + apart @ inverse @ apart.T
    given_noise = -0.5 * (
        d_x * d_y * math.log(2 * math.pi)
        + d_x * log_det
        + d_y * np.linalg.slogdet(p.rows)[1]
        + np.trace(np.linalg.inv(p.rows) @ outer)
    )
    noise = (
        0.5 * p.dof * (np.linalg.slogdet(p.scale)[1] - d_y * math.log(2))
        - special.multigammaln(p.dof / 2, d_y)
        - 0.5 * (p.dof + d_y + 1) * log_det
        - 0.5 * np.trace(p.scale @ inverse)
    )
    return float(given_noise + noise)


# --- the paper's own form of the update -----------------------------------------------------------------------------


def natural_update(
    prior: MNIW, average: Moments | None, reference: Tensor, precision: Symmetric, batch: Moments, rate: float
) -> tuple[Moments, MNIW]:
    """The update written on averages of XᵀX (as R_t⁻¹), XᵀY and YᵀY, as in the paper's Algorithm 1.

    The package updates M and U instead (`updates.mean_update`), which keeps more digits: this is what that has to equal.
    """
    absolute = batch.shifted(reference)
    xy = averaged(None if average is None else average.xy, absolute.xy, rate)
    yy = averaged(None if average is None else average.yy, absolute.yy, rate)
    moments = Moments(None, xy, yy, batch.n)  # the average of XᵀX is in the precision
    return moments, prior.condition_at(precision, moments)
