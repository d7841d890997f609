"""The two forms of the mini-batch update, against each other and against the paper's averages written out in NumPy."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace

import numpy as np
import pytest
import torch
from torch import Tensor

from bali.conjugate.averages import DebiasedRate
from bali.conjugate.mniw import MNIW
from bali.conjugate.moments import Moments
from bali.conjugate.symmetric import Dense, Symmetric, average
from bali.conjugate.updates import fixed_precision_update, mean_update
from support.oracles import (
    Array,
    array,
    assert_close,
    dense,
    natural_update,
    normal,
    positive_definite,
    posterior,
    random_mniw,
    relative_error,
)
from support.posteriors import assert_same_posterior
from support.tolerances import STEPS as FORMS_AGREE

STEPS = 50
N_EFF = 200.0
D_IN, D_OUT, ROWS = 4, 3, 6  # fewer rows than a batch needs to determine the weights


def decaying(t: int) -> float:
    return 0.5 / (1.0 + 0.1 * t)


@dataclass
class Chain:
    """One form of the update, carried through mini-batches as an inference carries it."""

    form: str
    prior: MNIW
    reference: Tensor
    dtype: torch.dtype = torch.float64
    q: MNIW | None = None
    precision: Symmetric | None = None
    targets: Moments | None = None
    rate: DebiasedRate = field(default_factory=DebiasedRate)

    def step(self, x: Tensor, dy: Tensor, beta: float) -> MNIW:
        batch = Moments.of(x.to(self.dtype), dy.to(self.dtype), bias=True).rescale_(N_EFF)
        self.rate = self.rate.advanced(beta)
        rho = self.rate.newest
        assert batch.xx is not None
        precision = self.precision = average(self.precision, self.prior.precision.plus(batch.xx), rho)
        if self.form == "mean":
            self.q = mean_update(self.prior, self.q, self.reference, precision, batch, rho)
        else:
            self.targets, self.q = natural_update(self.prior, self.targets, self.reference, precision, batch, rho)
        self.reference = self.q.mean
        return self.q


class PaperChain:
    """Equations for Ψ, b = 1 − Π(1−β) and the posterior of the paper, for one regression, from explicit targets."""

    def __init__(self, prior: MNIW, reference: Tensor) -> None:
        self.prior, self.mean = dense(prior), array(reference)
        self.psi: list[Array] = [np.zeros(()), np.zeros(()), np.zeros(())]
        self.kept = 1.0  # Π(1−β)

    def step(self, x: Tensor, dy: Tensor, beta: float) -> tuple[Array, Array, Array]:
        rows = np.hstack([array(x), np.ones((len(x), 1))])
        y = rows @ self.mean + array(dy)
        fresh = [rows.T @ rows, rows.T @ y, y.T @ y]
        self.psi = [(1 - beta) * old + beta * N_EFF / len(x) * new for old, new in zip(self.psi, fresh, strict=True)]
        self.kept *= 1 - beta
        xx, xy, yy = (psi / (1 - self.kept) for psi in self.psi)
        r0_inverse, m0 = np.linalg.inv(self.prior.rows), self.prior.mean
        precision = r0_inverse + xx
        self.mean = np.linalg.solve(precision, r0_inverse @ m0 + xy)
        scale = self.prior.scale + m0.T @ r0_inverse @ m0 - self.mean.T @ precision @ self.mean + yy
        return self.mean, precision, scale


def mini_batches(seed: int, batch: tuple[int, ...], steps: int = STEPS) -> Iterator[tuple[Tensor, Tensor, float]]:
    rng = np.random.default_rng(seed)
    for t in range(steps):
        yield normal(rng, *batch, ROWS, D_IN), 0.3 * normal(rng, *batch, ROWS, D_OUT), decaying(t)


PRIORS: dict[str, Callable[[np.random.Generator], MNIW]] = {
    "dense precision": lambda rng: random_mniw(rng, D_IN + 1, D_OUT),
    "diagonal precision": lambda rng: random_mniw(rng, D_IN + 1, D_OUT, diagonal=True),
    "a prior for each": lambda rng: random_mniw(rng, D_IN + 1, D_OUT, (2,)),
    "zero mean": lambda rng: MNIW.prior(D_IN + 1, D_OUT, variance=0.3, noise=2.0),
}


@pytest.mark.parametrize("prior_name", PRIORS)
@pytest.mark.parametrize("batch", [(), (2,)], ids=["one", "batch of two"])
def test_both_forms_agree(prior_name: str, batch: tuple[int, ...]) -> None:
    rng = np.random.default_rng(0)
    prior, reference = PRIORS[prior_name](rng), normal(rng, *batch, D_IN + 1, D_OUT)
    chains = [Chain(form, prior, reference) for form in ("mean", "natural")]
    for x, dy, beta in mini_batches(1, batch):
        by_mean, by_natural = (chain.step(x, dy, beta) for chain in chains)
        assert_same_posterior(by_mean, by_natural, FORMS_AGREE)


@pytest.mark.parametrize("form", ["mean", "natural"])
@pytest.mark.parametrize("prior_name", ["dense precision", "diagonal precision", "zero mean"])
def test_each_form_is_the_paper(form: str, prior_name: str) -> None:
    rng = np.random.default_rng(2)
    prior, reference = PRIORS[prior_name](rng), normal(rng, 2, D_IN + 1, D_OUT)
    chain, papers = Chain(form, prior, reference), [PaperChain(prior, reference[k]) for k in range(2)]
    for x, dy, beta in mini_batches(3, (2,)):
        q = chain.step(x, dy, beta)
        for k, paper in enumerate(papers):
            mean, precision, scale = paper.step(x[k], dy[k], beta)
            assert_close(q.mean[k], mean, FORMS_AGREE)
            assert_close(q.precision.dense()[k], precision, FORMS_AGREE)
            assert_close(q.scale[k], scale, FORMS_AGREE)
        assert_close(float(q.dof), float(prior.dof) + N_EFF)


@pytest.mark.parametrize("form", ["mean", "natural"])
def test_scale_stays_above_the_prior_scale(form: str) -> None:
    """U − U₀ is an average of squares, so positive semi-definite; U inherits U₀'s positive definiteness."""
    rng = np.random.default_rng(4)
    prior = random_mniw(rng, D_IN + 1, D_OUT)
    chain = Chain(form, prior, normal(rng, 2, D_IN + 1, D_OUT))
    for x, dy, beta in mini_batches(5, (2,)):
        q = chain.step(x, dy, beta)
        eigenvalues = torch.linalg.eigvalsh(q.scale - prior.scale)
        assert float(eigenvalues.min()) > -FORMS_AGREE * float(q.scale.abs().max())
        assert float(torch.linalg.eigvalsh(q.scale).min()) > 0.0
        assert_close(q.scale, q.scale.mT)


@pytest.mark.parametrize("form", ["mean", "natural"])
def test_first_step_is_plain_conditioning(form: str) -> None:
    rng = np.random.default_rng(6)
    prior, reference = random_mniw(rng, D_IN + 1, D_OUT), normal(rng, D_IN + 1, D_OUT)
    x, dy, beta = next(mini_batches(7, ()))
    rows = torch.cat([x, torch.ones(ROWS, 1, dtype=torch.float64)], dim=1)
    expected = posterior(dense(prior), array(rows), array(rows @ reference + dy), weight=N_EFF / ROWS)
    q = Chain(form, prior, reference).step(x, dy, beta)
    assert_close(q.mean, expected.mean)
    assert_close(q.scale, expected.scale)
    assert_close(float(q.dof), expected.dof)


@pytest.mark.parametrize("form", ["mean", "natural"])
def test_true_targets_in_full_batches_are_closed_form_regression_at_every_step(form: str) -> None:
    """With ΔY = Y − X M_{t−1} for the same Y every time, the averages never move, whatever the rates."""
    rng = np.random.default_rng(8)
    prior, reference = random_mniw(rng, D_IN + 1, D_OUT), normal(rng, D_IN + 1, D_OUT)
    x, y = normal(rng, 12, D_IN), normal(rng, 12, D_OUT)
    rows = torch.cat([x, torch.ones(12, 1, dtype=torch.float64)], dim=1)
    expected = posterior(dense(prior), array(rows), array(y), weight=N_EFF / 12)
    chain = Chain(form, prior, reference)
    for t in range(10):
        q = chain.step(x, y - rows @ chain.reference, decaying(t))
        assert_close(q.mean, expected.mean, FORMS_AGREE)
        assert_close(q.scale, expected.scale, FORMS_AGREE)


def test_mean_form_takes_any_input_statistics() -> None:
    """M_t = M_{t−1} + ρ R_t (R₀⁻¹(M₀ − M_{t−1}) + XᵀΔY), also when R_t is not that of the batches."""
    rng = np.random.default_rng(9)
    prior, previous = random_mniw(rng, D_IN + 1, D_OUT), random_mniw(rng, D_IN + 1, D_OUT)
    x, dy, _ = next(mini_batches(10, ()))
    everything = normal(rng, 100, D_IN + 1)
    batch = Moments.of(x, dy, bias=True).rescale_(N_EFF)
    q = mean_update(prior, previous, previous.mean, prior.precision.plus(Dense(everything.mT @ everything)), batch, 0.2)
    r0_inverse = array(prior.precision)
    rows = np.linalg.inv(r0_inverse + array(everything).T @ array(everything))
    drive = r0_inverse @ array(prior.mean - previous.mean) + array(batch.xy)
    assert_close(q.mean, array(previous.mean) + 0.2 * rows @ drive)
    assert_close(q.precision, np.linalg.inv(rows))


@pytest.mark.parametrize("diagonal", [False, True])
def test_a_known_precision_moves_the_mean_alike_and_leaves_the_noise_about_the_previous_mean(diagonal: bool) -> None:
    """M as in the mean form; U = (1−ρ)U_{t−1} + ρ(U₀ + AᵀR₀⁻¹A + ΔYᵀΔY), with A = M_{t−1} − M₀."""
    rng = np.random.default_rng(15)
    prior, previous = (random_mniw(rng, D_IN + 1, D_OUT, diagonal=diagonal) for _ in range(2))
    x, dy, _ = next(mini_batches(16, ()))
    batch, rho = Moments.of(x, dy, bias=True).rescale_(N_EFF), 0.2
    precision = prior.precision.plus(Dense(positive_definite(rng, D_IN + 1)))
    moved = mean_update(prior, previous, previous.mean, precision, batch, rho)
    departure = array(previous.mean) - array(prior.mean)
    residual = departure.T @ array(prior.precision) @ departure + array(batch.yy)
    scale = (1 - rho) * array(previous.scale) + rho * (array(prior.scale) + residual)
    for keeps_inverse in (False, True):
        if keeps_inverse:
            precision.keep_inverse()
        q = fixed_precision_update(prior, previous, previous.mean, precision, batch, rho)
        assert_close(q.mean, moved.mean)
        assert_close(q.scale, scale)
        assert q.precision is precision
        assert q.dof == moved.dof
        assert float(torch.linalg.eigvalsh(q.scale - moved.scale).min()) > 0.0


def test_posterior_keeps_name_and_factor() -> None:
    prior = replace(random_mniw(np.random.default_rng(11), D_IN + 1, D_OUT), name="layer 'a'")
    for form in ("mean", "natural"):
        chain = Chain(form, prior, prior.mean)
        for x, dy, beta in mini_batches(12, (), 2):
            q = chain.step(x, dy, beta)
            assert q.name == "layer 'a'"
            assert_close(q.precision.factor @ q.precision.factor.mT, q.precision)


# --- rounding -------------------------------------------------------------------------------------------------------

NOISE, OFFSET = 1e-2, 1e3  # standard deviation of the residuals, and how far from zero the targets lie
ACCURATE = 1e-3  # relative error of U that float32 should reach
ADVANTAGE = 1e3  # how many times nearer to the truth the mean form's U is


def test_mean_form_keeps_the_digits_of_a_tiny_residual() -> None:
    """Nearly linear targets with a big offset, weights near the solution: YᵀY − MᵀR⁻¹M has no correct digit left."""
    rng = np.random.default_rng(13)
    truth = normal(rng, D_IN + 1, D_OUT)
    truth[-1] = OFFSET
    prior = MNIW.prior(D_IN + 1, D_OUT, variance=1e8, noise=NOISE**2)

    def final_scale(form: str, dtype: torch.dtype) -> Tensor:
        single = MNIW(prior.mean.to(dtype), prior.precision.to(dtype), prior.scale.to(dtype), prior.dof)
        chain = Chain(form, single, truth.to(dtype), dtype)
        residuals = np.random.default_rng(14)
        for t in range(STEPS):
            x, noise = normal(residuals, 32, D_IN), NOISE * normal(residuals, 32, D_OUT)
            rows = torch.cat([x, torch.ones(32, 1, dtype=torch.float64)], dim=1)
            q = chain.step(x, noise + rows @ (truth - chain.reference), decaying(t))
        return q.scale

    exact = final_scale("mean", torch.float64)
    by_mean, by_natural = (relative_error(final_scale(form, torch.float32), exact) for form in ("mean", "natural"))
    assert relative_error(final_scale("natural", torch.float64), exact) < ACCURATE
    assert by_mean < ACCURATE
    assert by_natural > ADVANTAGE * by_mean
