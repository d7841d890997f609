"""What a step computes: closed forms, the two forms of the update, the noise, settings and weights of rows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats
from sklearn.linear_model import Ridge
from torch import Tensor, nn

import bali
from bali.conjugate.mniw import MNIW
from bali.conjugate.moments import Moments
from bali.conjugate.symmetric import Symmetric
from bali.conjugate.updates import mean_update
from bali.inference import layer_update
from bali.inference.local_noise import local_output_noise
from bali.predictive import likelihoods
from support.networks import batches, data, inference, mlp, randn, seeded
from support.oracles import array, natural_update
from support.posteriors import assert_same_posterior, assert_same_posteriors
from support.tolerances import EXACT
from support.tolerances import STANDARD_ERRORS as SIGMAS
from support.tolerances import STEPS as FORMS


def decaying(step: int) -> float:
    return 0.3 if step <= 30 else 0.06


# --- the two forms of the update ------------------------------------------------------------------------------------


class NaturalForm:
    """Stands in for the mean form, with averages of its own for every layer."""

    def __init__(self) -> None:
        self.averages: dict[str, Moments] = {}

    def __call__(
        self, prior: MNIW, previous: MNIW | None, reference: Tensor, precision: Symmetric, batch: Moments, rate: float
    ) -> MNIW:
        # R_t⁻¹ = (1−ρ)R_{t−1}⁻¹ + ρ(R₀⁻¹ + XᵀX) tells what the batch's XᵀX was.
        kept = 0.0 if previous is None else (1.0 - rate) * previous.precision.dense()
        xx = (precision.dense() - kept) / rate - prior.precision.dense()
        known = self.averages.get(prior.name)
        whole = Moments(xx, batch.xy, batch.yy, batch.n)
        self.averages[prior.name], posterior = natural_update(prior, known, reference, precision, whole, rate)
        return posterior


@pytest.mark.parametrize("reparam", ["weight", "local", "none"])
@pytest.mark.parametrize(("likelihood", "outputs"), [("gaussian", 2), ("categorical", 3), ("bernoulli", 1)])
def test_mean_and_natural_form_agree(reparam: str, likelihood: str, outputs: int, monkeypatch: pytest.MonkeyPatch) -> None:
    x, y = data(likelihood, 80, 4, outputs)
    runs, forms = [], [mean_update, NaturalForm()]
    for form in forms:
        monkeypatch.setattr(layer_update, "mean_update", form)
        settings: dict[str, Any] = {"reparam": reparam, "prior_variance": 1.0, "effective_size": 50}
        run = inference(mlp((4, 8, 6, outputs)), likelihood, 80, **settings)
        for step, (bx, by) in enumerate(batches(x, y, 32, 50), 1):
            run.step(bx, by, decaying(step))
        runs.append(run)
    assert isinstance(forms[1], NaturalForm)
    assert len(forms[1].averages) == 3
    assert_same_posteriors(*runs, tolerance=FORMS)


# --- one linear layer is a closed-form regression -------------------------------------------------------------------


@pytest.mark.parametrize("reparam", ["weight", "local", "none"])
@pytest.mark.parametrize("bias", [True, False], ids=["bias", "no bias"])
def test_one_layer_is_conjugate_regression(reparam: str, bias: bool) -> None:
    x, y = data("gaussian", 40, 5, 2)
    rows = torch.cat([x, torch.ones(40, 1, dtype=x.dtype)], 1) if bias else x
    found = inference(
        nn.Linear(5, 2, bias=bias).double(),
        n_data=40,
        reparam=reparam,
        prior_variance=0.7,
        output_noise_floor=0.05,
    )
    prior = bali.MNIW.prior(rows.shape[1], 2, variance=0.7, noise=0.05 * 40)
    expected = prior.condition(bali.Moments.of(rows, y, bias=False))
    ridge = Ridge(alpha=1 / 0.7, fit_intercept=False).fit(rows.numpy(), y.numpy())
    for _ in range(3):  # true targets and the whole data: every step finds the same posterior
        found.step(x, y, ema_rate=1.0)
        (posterior,) = found.posteriors.values()
        assert_same_posterior(posterior, expected, EXACT)
        assert posterior.dof == expected.dof == 2 + 1 + 40
        np.testing.assert_allclose(posterior.mean.numpy(), ridge.coef_.T, rtol=EXACT, atol=EXACT)


def test_returned_log_likelihood_is_that_of_the_weights_used() -> None:
    x, y = data("categorical", 30, 4, 3)
    module = mlp((4, 6, 3))
    run = inference(module, "categorical", 30)
    for _ in range(3):
        with torch.no_grad():
            expected = -nn.functional.cross_entropy(module(x), y)
        torch.testing.assert_close(run.step(x, y), expected, rtol=EXACT, atol=EXACT)


# --- the noise of local reparametrisation ---------------------------------------------------------------------------


def test_local_noise_has_the_distribution_of_the_paper() -> None:
    """Rows e ~ N(0, xᵀRx Σ), independent of one another."""
    draws = 40_000
    x, y = data("gaussian", 30, 3, 2)
    run = inference(nn.Linear(3, 2).double(), n_data=30, reparam="local", prior_variance=1.0, output_noise_floor=0.3)
    run.step(x, y)
    (posterior,) = run.posteriors.values()
    row = randn(1, 3, seed=11)
    noise = local_output_noise(posterior, row.expand(draws, 3), torch.zeros(draws, 2).double(), "mode", seeded(3)).numpy()

    full = np.append(row.numpy(), 1.0)
    sigma = posterior.scale.numpy() / (float(posterior.dof) + 2 + 1)
    covariance = full @ np.linalg.inv(array(posterior.precision)) @ full * sigma
    variance = np.diag(covariance)
    assert np.all(np.abs(noise.mean(0)) < SIGMAS * np.sqrt(variance / draws))
    error = np.sqrt((np.outer(variance, variance) + covariance**2) / draws)  # of a sample covariance
    assert np.all(np.abs(np.cov(noise.T) - covariance) < SIGMAS * error)
    white = np.linalg.solve(np.linalg.cholesky(covariance), noise.T)
    assert stats.kstest(white.ravel(), "norm").pvalue > 1e-4
    neighbours = np.mean(white[:, 1:] * white[:, :-1])
    assert abs(neighbours) < SIGMAS / np.sqrt(2 * draws)


def test_local_noise_of_sampled_covariance_is_heavier() -> None:
    """With noise="sample" each draw has its own Σ ~ W⁻¹(U, u), whose mean is U / (u − D_y − 1)."""
    draws = 600
    x, y = data("gaussian", 12, 2, 1)
    run = inference(nn.Linear(2, 1).double(), n_data=12, reparam="local", prior_variance=1.0)
    run.step(x, y)
    (posterior,) = run.posteriors.values()
    generator, row = seeded(4), randn(1, 2, seed=12)
    zero = torch.zeros(1, 1).double()
    noise = torch.cat([local_output_noise(posterior, row, zero, "sample", generator) for _ in range(draws)]).numpy()
    full = np.append(row.numpy(), 1.0)
    u = float(posterior.dof)
    expected = full @ np.linalg.inv(array(posterior.precision)) @ full * float(posterior.scale) / (u - 2)
    fourth = 3 + 6 / (u - 4)  # kurtosis of a Student-t with u degrees of freedom
    assert abs(np.mean(noise**2) - expected) < SIGMAS * expected * np.sqrt((fourth - 1) / draws)


# --- weights of rows ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("likelihood", ["gaussian", "categorical"])
def test_row_weights_count_rows(likelihood: str) -> None:
    x, y = data(likelihood, 20, 3, 2)
    weight = torch.arange(20) % 3  # 0, 1, 2: left out, once, twice
    repeated = torch.repeat_interleave(torch.arange(20), weight)
    weighted = inference(mlp((3, 5, 2)), likelihood, 20, reparam="none")
    copied = inference(mlp((3, 5, 2)), likelihood, 20, reparam="none")
    for _ in range(4):
        value = weighted.step(x, y, sample_weight=weight.double())
        torch.testing.assert_close(value, copied.step(x[repeated], y[repeated]), rtol=EXACT, atol=EXACT)
    assert_same_posteriors(weighted, copied, tolerance=EXACT)


@pytest.mark.parametrize("weight", [torch.zeros(20), -torch.ones(20), torch.full((20,), torch.nan)])
def test_bad_row_weights_are_refused(weight: torch.Tensor) -> None:
    x, y = data("gaussian", 20, 3, 1)
    run = inference(mlp((3, 5, 1)), n_data=20)
    with pytest.raises(ValueError, match="sample_weight"):
        run.step(x, y, sample_weight=weight)


# --- settings and targets -------------------------------------------------------------------------------------------

BAD_SETTINGS: dict[str, dict[str, Any]] = {
    "reparam": {"reparam": "weights"},
    "step_size": {"step_size": 0.0},
    "noise_floor": {"noise_floor": float("nan")},
    "output_noise_floor": {"output_noise_floor": -1.0},
    "effective_size": {"effective_size": 0.0},
    "n_data": {"n_data": -1},
    "prior_variance": {"prior_variance": float("inf")},
    "prior_variance names unknown layers": {"prior_variance": {"5": 1.0}},
}


@pytest.mark.parametrize(("message", "settings"), BAD_SETTINGS.items(), ids=BAD_SETTINGS.keys())
def test_bad_settings_are_named(message: str, settings: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=message):
        inference(mlp((3, 5, 1)), **settings)


@pytest.mark.parametrize("rate", [0.0, -0.1, 1.5, float("nan")])
def test_bad_rates_are_refused(rate: float) -> None:
    x, y = data("gaussian", 10, 3, 1)
    with pytest.raises(ValueError, match="ema_rate"):
        inference(mlp((3, 5, 1)), n_data=10).step(x, y, ema_rate=rate)


def test_a_step_size_that_falls_is_that_of_each_step() -> None:
    x, y = data("gaussian", 20, 3, 1)
    alphas = [0.5, 0.2, 0.7, 0.1]
    run = inference(mlp((3, 5, 1)), n_data=20)
    for alpha in alphas:
        other = inference(mlp((3, 5, 1)), n_data=20, step_size=alpha)
        other.load_state_dict(run.state_dict())
        assert torch.equal(run.step(x, y, step_size=alpha), other.step(x, y))
        assert_same_posteriors(run, other)


BAD_STRIDES: dict[str, dict[str, Any]] = {
    "step_size must be positive": {"step_size": 0.0},
    r"ema_rate must be in \(0, 1\]": {"ema_rate": 1.5},
    "momentum must be at least 0 and less than 1": {"momentum": 1.0},
}


@pytest.mark.parametrize(("message", "stride"), BAD_STRIDES.items(), ids=BAD_STRIDES.keys())
def test_a_step_that_is_refused_leaves_everything_as_it_was(message: str, stride: dict[str, Any]) -> None:
    x, y = data("gaussian", 20, 3, 1)
    run = inference(mlp((3, 5, 1)), n_data=20)
    run.step(x, y)
    before = run.state
    with pytest.raises(ValueError, match=message):
        run.step(x, y, **stride)
    assert run.state is before


PREPARATIONS: dict[str, Callable[[bali.LayerwiseInference], None]] = {
    "prior about weights": lambda run: run.center_prior_on_weights(),
    "exact inputs": lambda run: run.use_input_moments(torch.eye(4)),
}


@pytest.mark.parametrize("prepare", PREPARATIONS.values(), ids=PREPARATIONS.keys())
def test_preparations_come_before_the_first_step(prepare: Callable[[bali.LayerwiseInference], None]) -> None:
    run = inference(mlp((3, 5, 1)), n_data=20)
    run.step(*data("gaussian", 20, 3, 1))
    before = run.state
    with pytest.raises(RuntimeError, match="before the first step"):
        prepare(run)
    assert run.state is before


BAD_TARGETS: dict[str, tuple[str, torch.Tensor, type[Exception]]] = {
    "one target for each output, not for each row": ("gaussian", torch.zeros(2), ValueError),
    "too many columns": ("gaussian", torch.zeros(2, 3), ValueError),
    "too few rows": ("gaussian", torch.zeros(1, 2), ValueError),
    "classes as floats": ("categorical", torch.zeros(2), TypeError),
    "class out of range": ("categorical", torch.tensor([0, 2]), ValueError),
    "negative class": ("categorical", torch.tensor([0, -1]), ValueError),
    "classes in columns": ("categorical", torch.zeros(2, 2).long(), ValueError),
    "neither yes nor no": ("bernoulli", torch.full((2, 2), 0.5), ValueError),
}


@pytest.mark.parametrize(("likelihood", "y", "error"), BAD_TARGETS.values(), ids=BAD_TARGETS.keys())
def test_targets_that_do_not_fit_are_refused(likelihood: str, y: torch.Tensor, error: type[Exception]) -> None:
    run = inference(mlp((3, 5, 2)), likelihood, 10)
    with pytest.raises(error):
        run.step(randn(2, 3, seed=1), y)
    assert run.state.step == 0


def test_nothing_to_see_before_the_first_step() -> None:
    run = inference(mlp((3, 5, 1)))
    with pytest.raises(RuntimeError, match="step"):
        run.posteriors  # noqa: B018
    with pytest.raises(RuntimeError, match="step"):
        run.predict(randn(2, 3, seed=0))


def test_the_global_random_state_is_left_alone() -> None:
    x, y = data("gaussian", 20, 3, 1)
    run = inference(mlp((3, 5, 1)), n_data=20)
    before = torch.get_rng_state()
    run.step(x, y)
    run.predict(x, 4, noise="sample")
    assert torch.equal(torch.get_rng_state(), before)


def test_prior_variance_defaults_and_names() -> None:
    x, y = data("gaussian", 20, 3, 1)
    run = bali.LayerwiseInference(mlp((3, 5, 1)), likelihoods.Gaussian(), 20, prior_variance={"2": 0.5}, generator=seeded(0))
    run.step(x, y)
    priors = {name: float(state.prior.precision.diagonal()[0]) for name, state in run.state.layers.items()}
    assert priors == pytest.approx({"0": (3 + 1) / 10, "2": 2.0})
