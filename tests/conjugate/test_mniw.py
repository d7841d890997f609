"""Densities, conditioning and predictions of the matrix-normal inverse-Wishart against SciPy and dense algebra."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from torch import Tensor

from bali.conjugate.linalg import NumericalError, NumericalRepairWarning, Repairs
from bali.conjugate.mniw import MNIW
from bali.conjugate.moments import Moments
from bali.conjugate.symmetric import Dense as SymmetricDense
from support import oracles
from support.natural import natural
from support.oracles import (
    Problem,
    array,
    assert_close,
    assert_mean,
    dense,
    fast,
    problems,
    random_mniw,
    random_problem,
    seeds,
)
from support.tolerances import FLOAT32


def point(q: MNIW, seed: int = 0) -> tuple[Tensor, Tensor]:
    """An arbitrary (W, Σ)."""
    rng = np.random.default_rng(seed)
    return oracles.normal(rng, *q.mean.shape), oracles.positive_definite(rng, q.n_outputs, q.mean.shape[:-2])


def assert_same(actual: MNIW, expected: oracles.Dense) -> None:
    assert_close(actual.mean, expected.mean)
    assert_close(actual.precision, np.linalg.inv(expected.rows))
    assert_close(actual.scale, expected.scale)
    assert_close(float(actual.dof), expected.dof)


# --- density --------------------------------------------------------------------------------------------------------


@fast
@given(problems, seeds)
def test_log_prob_is_scipys(problem: Problem, seed: int) -> None:
    q = problem.prior
    weights, noise = point(q, seed)
    log_prob = q.log_prob(weights, noise)
    assert_close(log_prob, oracles.log_prob_scipy(dense(q), array(weights), array(noise)))
    assert_close(log_prob, oracles.log_prob_kronecker(dense(q), array(weights), array(noise)))


def test_log_prob_of_one_distribution_at_many_points() -> None:
    q = random_problem(0).prior
    points = [point(q, seed) for seed in range(5)]
    together = q.log_prob(torch.stack([w for w, _ in points]), torch.stack([noise for _, noise in points]))
    assert_close(together, torch.stack([q.log_prob(*p) for p in points]))


def test_noise_mode_has_the_highest_density() -> None:
    q = random_problem(1).prior
    mode = array(q.noise_mode())
    assert_close(q.noise_mode_factor() @ q.noise_mode_factor().mT, mode)
    highest = oracles.log_prob_noise(dense(q), mode)
    for seed in range(20):
        step = 0.05 * array(oracles.normal(np.random.default_rng(seed), 2, 2))
        assert oracles.log_prob_noise(dense(q), (np.eye(2) + step) @ mode @ (np.eye(2) + step).T) < highest


# --- conditioning ---------------------------------------------------------------------------------------------------


@fast
@given(problems)
def test_condition_is_the_residual_formula(problem: Problem) -> None:
    q = problem.prior.condition(problem.moments)
    assert_same(q, oracles.posterior(dense(problem.prior), array(problem.x), array(problem.y)))
    assert torch.equal(q.scale, q.scale.mT)


@fast
@given(problems, seeds)
def test_condition_is_dense_regression_for_any_fixed_noise(problem: Problem, seed: int) -> None:
    """vec(Y) ~ N((I ⊗ X) vec(W), Σ ⊗ I), vec(W) ~ N(vec(M₀), Σ ⊗ R₀)."""
    prior, x, y = dense(problem.prior), array(problem.x), array(problem.y)
    noise = array(point(problem.prior, seed)[1])
    design = np.kron(np.eye(len(noise)), x)
    noise_precision = np.linalg.inv(np.kron(noise, np.eye(len(x))))
    prior_precision = np.linalg.inv(np.kron(noise, prior.rows))
    covariance = np.linalg.inv(prior_precision + design.T @ noise_precision @ design)
    mean = covariance @ (prior_precision @ oracles.vec(prior.mean) + design.T @ noise_precision @ oracles.vec(y))
    q = dense(problem.prior.condition(problem.moments))
    assert_close(np.kron(noise, q.rows), covariance)
    assert_close(oracles.vec(q.mean), mean)


@fast
@given(problems)
def test_two_halves_condition_like_the_whole(problem: Problem) -> None:
    half = len(problem.x) // 2
    first, second = (Moments.of(problem.x[s], problem.y[s], bias=False) for s in (slice(half), slice(half, None)))
    at_once = dense(problem.prior.condition(problem.moments))
    assert_same(problem.prior.condition(first).condition(second), at_once)
    assert_same(problem.prior.condition(first + second), at_once)


@fast
@given(problems)
def test_natural_parameters_add(problem: Problem) -> None:
    """The appendix table: θ = θ₀ + (−½XᵀX, XᵀY, −½YᵀY, −½N)."""
    prior, x, y = problem.prior, problem.x, problem.y
    likelihood = (-0.5 * x.mT @ x, x.mT @ y, -0.5 * y.mT @ y, torch.tensor(-0.5 * len(x), dtype=torch.float64))
    summed = [theta + new for theta, new in zip(natural(prior), likelihood, strict=True)]
    for actual, expected in zip(natural(prior.condition(problem.moments)), summed, strict=True):
        assert_close(actual, expected)


@fast
@given(problems)
def test_natural_parameters_are_the_table(problem: Problem) -> None:
    prior = dense(problem.prior)
    precision = np.linalg.inv(prior.rows)
    found = natural(problem.prior)
    assert_close(found.precision, -precision / 2)
    assert_close(found.precision_mean, precision @ prior.mean)
    assert_close(found.scale, -(prior.scale + prior.mean.T @ precision @ prior.mean) / 2)
    assert_close(found.log_det, -(prior.dof + sum(prior.mean.shape) + 1) / 2)


# --- evidence and divergence ----------------------------------------------------------------------------------------


@fast
@given(problems)
def test_log_evidence_is_the_chain_of_student_t_predictions(problem: Problem) -> None:
    chain = oracles.log_evidence_chain(dense(problem.prior), array(problem.x), array(problem.y))
    assert_close(problem.prior.log_evidence(problem.moments), chain)


@fast
@given(problems, seeds)
def test_log_evidence_is_prior_times_likelihood_over_posterior(problem: Problem, seed: int) -> None:
    prior, moments = problem.prior, problem.moments
    weights, noise = point(prior, seed)
    likelihood = oracles.log_likelihood(*(array(v) for v in (problem.x, problem.y, weights, noise)))
    bayes = prior.log_prob(weights, noise) + likelihood - prior.condition(moments).log_prob(weights, noise)
    assert_close(prior.log_evidence(moments), bayes)


@fast
@given(problems, seeds)
def test_kl_is_the_difference_of_expected_log_densities(problem: Problem, seed: int) -> None:
    p = problem.prior
    q = random_mniw(np.random.default_rng([seed, 1]), p.n_inputs, p.n_outputs)
    expected = oracles.expected_log_prob(dense(q), dense(q)) - oracles.expected_log_prob(dense(q), dense(p))
    assert_close(q.kl(p), expected)
    assert float(q.kl(p)) > 0.0
    assert_close(q.kl(q), 0.0)


def test_kl_is_the_mean_log_ratio_of_samples() -> None:
    problem = random_problem(2)
    p, q = problem.prior, problem.prior.condition(problem.moments)
    samples = q.sample((20_000,), torch.Generator().manual_seed(0))
    assert_mean(array(q.log_prob(*samples) - p.log_prob(*samples)), array(q.kl(p)))


# --- prediction -----------------------------------------------------------------------------------------------------


@fast
@given(problems)
def test_predictive_is_the_textbook_student_t(problem: Problem) -> None:
    q = problem.prior.condition(problem.moments)
    t = q.predictive(problem.x)
    for n, x in enumerate(array(problem.x)):
        location, shape, dof = oracles.student_t(dense(q), x)
        assert_close(t.location[n], location)
        assert_close(t.inflation[n] * t.matrix, shape)
        assert_close(t.dof, dof)


@fast
@given(problems)
def test_predictive_density_is_the_evidence_of_one_row(problem: Problem) -> None:
    q = problem.prior
    t = q.predictive(problem.x[:1])
    shape = array(t.inflation[0] * t.matrix)
    log_density = oracles.student_t_log_density(array(problem.y[0]), array(t.location[0]), shape, float(t.dof))
    assert_close(q.log_evidence(Moments.of(problem.x[:1], problem.y[:1], bias=False)), log_density)


@fast
@given(problems)
def test_row_variance_with_and_without_ones(problem: Problem) -> None:
    q, x = problem.prior, problem.x.clone()
    x[:, -1] = 1.0
    expected = np.einsum("ni,ij,nj->n", array(x), dense(q).rows, array(x))
    assert_close(q.row_variance(x), expected)
    assert_close(q.row_variance(x[:, :-1]), expected)


# --- construction ---------------------------------------------------------------------------------------------------


def test_prior() -> None:
    prior = MNIW.prior(3, 2, variance=4.0, noise=0.5)
    assert_same(prior, oracles.Dense(np.zeros((3, 2)), 4.0 * np.eye(3), 0.5 * np.eye(2), 3.0))
    assert (prior.n_inputs, prior.n_outputs) == (3, 2)
    assert prior.predictive(torch.ones(1, 3, dtype=torch.float64)).dof > 1.0  # so its mean exists, and not with one less
    assert MNIW.prior(3, 2, dof=7.5).dof == 7.5


def test_several_variances_are_a_batch_of_priors() -> None:
    batch = MNIW.prior(3, 2, variance=torch.tensor([1.0, 4.0], dtype=torch.float64))
    assert batch.mean.shape == (2, 3, 2)
    for precision, variance in zip(batch.precision.dense(), (1.0, 4.0), strict=True):
        assert_close(precision, MNIW.prior(3, 2, variance=variance).precision)


@pytest.mark.parametrize("diagonal", [True, False])
def test_precision_times(diagonal: bool) -> None:
    q = random_mniw(np.random.default_rng(3), 4, 2, (2, 3), diagonal=diagonal)
    right = oracles.normal(np.random.default_rng(4), 2, 3, 4, 5)
    assert_close(q.precision.times(right), array(q.precision) @ array(right))


@pytest.mark.parametrize("batch", [(), (2,)], ids=["one prior", "a prior for each"])
@pytest.mark.parametrize("diagonal", [True, False])
@pytest.mark.parametrize("leading", [(), (2,)], ids=["shared inputs", "own inputs"])
def test_precision_plus_inputs(diagonal: bool, batch: tuple[int, ...], leading: tuple[int, ...]) -> None:
    q = random_mniw(np.random.default_rng(7), 4, 2, batch, diagonal=diagonal)
    xx = oracles.positive_definite(np.random.default_rng(8), 4, leading).to(torch.float32)
    kept = xx.clone()
    found = q.precision.plus(SymmetricDense(xx))
    assert found.dtype == torch.float64
    assert_close(found, array(q.precision) + array(xx))
    assert torch.equal(xx, kept)


def test_forgotten_factors_are_computed_again() -> None:
    q = random_problem(9).prior
    factors = q.precision.factor, q.scale_factor
    q.precision.forget_factor()
    q.forget_scale_factor()
    q.forget_scale_factor()  # there is none to forget
    assert torch.equal(q.precision.factor, factors[0])
    assert torch.equal(q.scale_factor, factors[1])


@pytest.mark.parametrize("diagonal", [True, False])
def test_methods_answer_in_the_type_they_are_asked_in(diagonal: bool) -> None:
    q = random_problem(5, diagonal=diagonal).prior
    x, normal = torch.ones(1, 3), oracles.normal(np.random.default_rng(6), 3, 2).float()
    for found, wide in (
        (q.row_variance(x), q.row_variance(x.double())),
        (q.weights_from(normal, q.noise_mode_factor()), q.weights_from(normal.double(), q.noise_mode_factor())),
        (q.precision.factor_as(torch.float32), q.precision.factor),
    ):
        assert found.dtype == torch.float32
        assert_close(found, wide, FLOAT32)


def test_distributions_of_one_precision_share_its_factor() -> None:
    q, other = random_problem(6).prior, random_problem(7).prior
    mixed = replace(q, mean=other.mean, scale=other.scale, dof=other.dof)
    assert mixed.precision.factor is q.precision.factor
    assert_same(mixed, dense(other)._replace(rows=dense(q).rows))


def test_posterior_reports_repairs_under_the_name_of_the_prior() -> None:
    repairs = Repairs()
    broken = torch.tensor([[1.0, 1.0 + 1e-6], [1.0 + 1e-6, 1.0]], dtype=torch.float64)
    zero = torch.zeros(2, 1, dtype=torch.float64)
    prior = MNIW(zero, 0.5 * broken, torch.eye(1, dtype=torch.float64), 2.0, "layer 'a'", repairs)
    with pytest.warns(NumericalRepairWarning, match="layer 'a': precision"):
        q = prior.condition(Moments(0.5 * broken, zero, torch.eye(1, dtype=torch.float64), 1.0))
    assert repairs.count == {"layer 'a': precision": 1}
    hopeless = replace(q, scale=-q.scale)
    with pytest.raises(NumericalError, match="layer 'a': noise scale"):
        hopeless.noise_mode_factor()


@pytest.mark.parametrize("variance", [2.0, torch.tensor([1.0, 4.0])], ids=["one", "each"])
def test_a_prior_of_one_variance(variance: Tensor | float) -> None:
    found = MNIW.prior(3, 2, variance=variance, name="layer 'a'")
    expected = np.asarray(1.0 / np.asarray(variance, dtype=np.float64))[..., None, None] * np.eye(3)
    assert_close(found.precision, expected)
    assert (found.precision.name, found.precision.dtype) == ("layer 'a': precision", torch.float64)
