"""What every likelihood of numbers promises, held against SciPy's distribution of the same outputs."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
from scipy import stats
from torch import Tensor

from bali.predictive import mixtures
from bali.predictive.predictive_base import Predictive, UndefinedError
from support.likelihood_cases import CASES, N_COMPONENTS, N_ROWS, Case, log_density
from support.oracles import STANDARD_ERRORS

NUMERICAL = 1e-6  # what is promised of quantities without a closed form, relative to their size

each_case = pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())


def prediction(case: Case, dtype: torch.dtype = torch.float64) -> tuple[Predictive, Tensor, Tensor]:
    z, y = case.outputs(), case.observations()
    return case.likelihood.predictive(z.to(dtype)), z, y


# --- the likelihood -------------------------------------------------------------------------------------------------


@each_case
def test_the_density_is_scipys(case: Case) -> None:
    if case.is_joint:
        pytest.skip("columns depend on each other; see test_likelihoods.py")
    z, y = case.outputs()[0], case.observations()
    found, _ = case.likelihood.evaluate(z, case.likelihood.targets(y, z))
    for row in range(N_ROWS):
        columns = zip(case.columns(z[row].numpy()), y[row].tolist(), strict=True)
        assert float(found[row]) == pytest.approx(sum(log_density(column, value) for column, value in columns), rel=1e-9)


@each_case
def test_the_gradient_is_that_of_finite_differences(case: Case) -> None:
    z, step = case.outputs()[0], 1e-6
    y = case.likelihood.targets(case.observations(), z)
    _, gradient = case.likelihood.evaluate(z, y)
    assert gradient.shape == z.shape
    for j in range(case.n_outputs):
        ahead, behind = (case.likelihood.evaluate(z + sign * step * torch.eye(case.n_outputs)[j], y)[0] for sign in (1, -1))
        torch.testing.assert_close(gradient[:, j], (ahead - behind) / (2 * step), rtol=1e-5, atol=1e-6)


@each_case
def test_members_and_positions_are_rows(case: Case) -> None:
    z, y = case.outputs(), case.observations()
    shared = case.likelihood.evaluate(z, case.likelihood.targets(y, z))
    for k in range(N_COMPONENTS):
        alone = case.likelihood.evaluate(z[k], case.likelihood.targets(y, z[k]))
        torch.testing.assert_close(shared[0][k], alone[0])
        torch.testing.assert_close(shared[1][k], alone[1])
    own = y.expand(N_COMPONENTS, -1, -1)
    torch.testing.assert_close(case.likelihood.evaluate(z, case.likelihood.targets(own, z))[0], shared[0])


@each_case
@pytest.mark.parametrize("size", [1.0, 50.0, 1e4])
def test_extreme_outputs_have_finite_values_and_gradients_in_float32(case: Case, size: float) -> None:
    if "_Of" in repr(case.likelihood):
        pytest.skip("links of one's own are one's own")
    generator = torch.Generator().manual_seed(0)
    z = size * (2 * torch.randint(2, (200, case.n_outputs), generator=generator).float() - 1)
    y = case.observations().repeat(40, 1)
    value, gradient = case.likelihood.evaluate(z, case.likelihood.targets(y, z))
    assert value.dtype == gradient.dtype == torch.float32
    assert value.isfinite().all()
    assert gradient.isfinite().all()


@each_case
def test_the_number_of_outputs_follows_from_the_targets(case: Case) -> None:
    y = case.observations()
    assert case.likelihood.n_outputs(y) == case.n_outputs
    if case.n_columns == 1:
        assert case.likelihood.n_outputs(y[:, 0]) == case.n_outputs


@each_case
def test_targets_of_another_shape_are_refused(case: Case) -> None:
    z, y = case.outputs()[0], case.observations()
    with pytest.raises(ValueError, match="shape"):
        case.likelihood.targets(y[:-1], z)
    with pytest.raises(ValueError, match="shape"):
        case.likelihood.targets(y.repeat(1, 3), z)


# --- the prediction -------------------------------------------------------------------------------------------------


@each_case
def test_mean_and_variance_are_the_mixtures(case: Case) -> None:
    predictive, z, _ = prediction(case)
    for row in range(N_ROWS):
        for column in range(case.n_columns):
            oracle = case.mixture(z, row, column)
            assert float(predictive.mean[row, column]) == pytest.approx(oracle.mean(), rel=1e-8)
            assert float(predictive.variance[row, column]) == pytest.approx(oracle.var(), rel=1e-8)
            assert float(predictive.std[row, column]) == pytest.approx(np.sqrt(oracle.var()), rel=1e-8)
    torch.testing.assert_close(predictive.epistemic + predictive.aleatoric, predictive.variance)


@each_case
def test_cdf_and_log_prob_are_the_mixtures(case: Case) -> None:
    predictive, z, y = prediction(case)
    cdf, log_prob = predictive.cdf(y), predictive.log_prob(y)
    for row in range(N_ROWS):
        columns = [case.mixture(z, row, column) for column in range(case.n_columns)]
        for column, oracle in enumerate(columns):
            assert float(cdf[row, column]) == pytest.approx(oracle.cdf(float(y[row, column])), rel=1e-8)
        if case.n_columns == 1:
            assert float(log_prob[row]) == pytest.approx(log_density(columns[0], float(y[row, 0])), rel=1e-8)
    components = torch.stack([case.likelihood.evaluate(c, case.likelihood.targets(y, c))[0] for c in z])
    torch.testing.assert_close(predictive.component_log_prob(y), components)


@each_case
def test_quantiles_invert_the_cdf(case: Case) -> None:
    predictive, z, _ = prediction(case)
    levels = [1e-4, 0.05, 0.5, 0.8, 1 - 1e-4]
    quantiles = predictive.quantiles(levels)
    assert quantiles.shape == (len(levels), N_ROWS, case.n_columns)
    for level, found in zip(levels, quantiles, strict=True):
        for row in range(N_ROWS):
            for column in range(case.n_columns):
                oracle, q = case.mixture(z, row, column), float(found[row, column])
                if oracle.is_discrete:
                    assert oracle.cdf(q - 1) < level <= oracle.cdf(q)
                else:
                    assert oracle.cdf(q) == pytest.approx(level, rel=NUMERICAL)
    low, high = predictive.interval(0.9)
    assert (low <= high).all()
    torch.testing.assert_close(predictive.median, quantiles[2])


@each_case
def test_crps_is_the_integral(case: Case) -> None:
    predictive, z, y = prediction(case)
    found = predictive.crps(y)
    low, high = predictive.quantiles([1e-7, 1 - 1e-13])
    for row in (0, 3):
        for column in range(case.n_columns):
            ends = float(low[row, column]), float(high[row, column])
            expected = case.mixture(z, row, column).crps(float(y[row, column]), *ends)
            assert float(found[row, column]) == pytest.approx(expected, rel=NUMERICAL)


@each_case
def test_samples_have_the_distribution(case: Case) -> None:
    predictive, z, _ = prediction(case)
    draws = predictive.sample(4000, torch.Generator().manual_seed(3))
    again = predictive.sample(4000, torch.Generator().manual_seed(3))
    assert draws.shape == (4000, N_ROWS, case.n_columns)
    torch.testing.assert_close(draws, again, rtol=0, atol=0)
    for row in range(N_ROWS):
        for column in range(case.n_columns):
            # below a few points: what a count of draws says about the distribution function
            oracle, values = case.mixture(z, row, column), draws[:, row, column].numpy()
            for level in (0.1, 0.5, 0.9):
                at = float(predictive.quantiles(level)[0, row, column])
                p = float(oracle.cdf(at))
                assert abs((values <= at).mean() - p) <= STANDARD_ERRORS * np.sqrt(p * (1 - p) / len(values)) + 1e-9


@each_case
def test_sampling_leaves_the_global_generator_alone(case: Case) -> None:
    before = torch.get_rng_state()
    prediction(case)[0].sample(3, torch.Generator().manual_seed(0))
    assert torch.equal(torch.get_rng_state(), before)


@each_case
def test_rows_components_and_concatenation(case: Case) -> None:
    predictive, z, y = prediction(case)
    assert (predictive.n_rows, predictive.n_components) == (N_ROWS, N_COMPONENTS)
    torch.testing.assert_close(predictive.rows(slice(2, 4)).log_prob(y[2:4]), predictive.log_prob(y)[2:4])
    some = torch.tensor([0, 3])
    torch.testing.assert_close(predictive.components(some).mean, case.likelihood.predictive(z[some]).mean)
    whole = mixtures.concatenate([predictive.rows(part) for part in (slice(0, 1), slice(1, 4), slice(4, None))])
    assert type(whole) is type(predictive)
    torch.testing.assert_close(whole.log_prob(y), predictive.log_prob(y))
    torch.testing.assert_close(whole.quantiles([0.3]), predictive.quantiles([0.3]))


@each_case
def test_float32_predictions_are_as_good_as_their_parameters(case: Case) -> None:
    exact, _, y = prediction(case)
    single, _, _ = prediction(case, torch.float32)
    pairs = (single.mean, exact.mean), (single.log_prob(y), exact.log_prob(y)), (single.crps(y), exact.crps(y))
    for found, expected in pairs:
        assert found.dtype == torch.float32
        torch.testing.assert_close(found.double(), expected, rtol=2e-4, atol=1e-5)


@each_case
def test_a_temperature_changes_the_noise_and_not_what_it_is_about(case: Case) -> None:
    predictive, _, _ = prediction(case)
    if not case.tempers:
        with pytest.raises(UndefinedError, match="temperature"):
            predictive.tempered(2.0)
        return
    surer, less_sure = predictive.tempered(2.0), predictive.tempered(0.5)
    torch.testing.assert_close(predictive.tempered(1.0).std, predictive.std)
    assert surer.aleatoric.mean() < predictive.aleatoric.mean() < less_sure.aleatoric.mean()


@each_case
def test_likelihoods_can_be_copied(case: Case) -> None:
    z, y = case.outputs(), case.observations()
    copied = copy.deepcopy(case.likelihood)
    torch.testing.assert_close(copied.predictive(z).log_prob(y), case.likelihood.predictive(z).log_prob(y))


def test_affine_is_the_distribution_of_changed_observations() -> None:
    scale, shift = torch.tensor([3.0, 0.5], dtype=torch.float64), torch.tensor([-1.0, 2.0], dtype=torch.float64)
    for name in ("Gaussian by row", "Gaussian by row, correlated", "mixture of Gaussians"):
        predictive, _, y = prediction(CASES[name])
        changed = predictive.affine(scale, shift)
        torch.testing.assert_close(changed.mean, predictive.mean * scale + shift)
        torch.testing.assert_close(changed.std, predictive.std * scale)
        torch.testing.assert_close(changed.log_prob(y * scale + shift), predictive.log_prob(y) - scale.log().sum())
    for name in ("log-normal", "gamma", "Weibull"):
        predictive, _, y = prediction(CASES[name])
        torch.testing.assert_close(predictive.affine(scale[:1], torch.zeros(1)).mean, predictive.mean * 3)
        with pytest.raises(UndefinedError, match="shifted"):
            predictive.affine(scale[:1], shift[:1])


def test_the_reference_itself_is_right() -> None:
    """CRPS of a standard Gaussian at its mean is (√2 − 1)/√π."""
    from support.likelihood_cases import Mixed

    found = Mixed([1.0], [stats.norm()]).crps(0.0, -8.0, 8.0)
    assert found == pytest.approx((np.sqrt(2) - 1) / np.sqrt(np.pi), rel=1e-9)
