"""Targets that may be counts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from scipy import stats
from sklearn.exceptions import ConvergenceWarning

import bali
from bali.estimators.second_models import are_likelier, look_like_counts, may_be_counts
from bali.predictive.likelihoods import Poisson
from bali.predictive.mixtures import RegressionPredictive
from bali.training.calibration import Part
from bali.training.table_fit import Progress

Array = NDArray[Any]
SMALL: dict[str, Any] = {
    "hidden_layer_sizes": (8,), "n_members": 2, "n_bins": 0, "max_iter": 100, "n_samples": 32, "random_state": 0,
}  # fmt: skip


def visits(n: int = 400) -> tuple[Array, Array]:
    rng = np.random.default_rng(0)
    X = rng.normal(size=(n, 2))
    return X, rng.poisson(np.exp(1.0 + X[:, 0])).astype(float)


@pytest.mark.parametrize(
    ("numbers", "expected"),
    [
        ([0, 1, 1, 7], True),
        ([1, 1, 2, 9], True),
        ([0, 1, 1, 7.5], False),  # not whole
        ([-1, 0, 0, 9], False),
        ([3, 3, 4, 9], False),  # grades
        ([0, 7, 8, 8], False),  # more large ones than small
        ([0, 1, 1, 70_000], False),  # an amount
    ],
)
def test_what_looks_like_counts(numbers: list[float], expected: bool) -> None:
    assert look_like_counts(np.array(numbers, dtype=float)) is expected


def test_few_different_numbers_and_several_columns_are_not_tried() -> None:
    _, y = visits()
    assert may_be_counts(y[:, None])
    assert not may_be_counts(np.stack([y, y], 1))
    assert not may_be_counts(y[:, None].clip(0, 5))


def test_a_density_is_compared_by_what_is_rounded_to_an_observation() -> None:
    """Against SciPy: narrow Gaussians at the observations beat counts, wide ones do not."""
    y = torch.tensor([[3.0], [5.0], [8.0]], dtype=torch.float64)
    weight = torch.tensor([1.0, 2.0, 1.0])
    rates = torch.tensor([[4.0], [4.0], [7.0]], dtype=torch.float64)
    counts = Part(Poisson().predictive(rates.log()[None], None), y, weight)
    of_counts = weight.numpy() @ np.asarray(stats.poisson.logpmf(y, rates))[:, 0]
    found = {}
    for std in (0.01, 0.2, 1.0, 2.0, 3.0, 30.0):
        numbers = Part(RegressionPredictive(rates[None], torch.tensor([[[std**2]]], dtype=torch.float64)), y, weight)
        norm = stats.norm(rates, std)
        of_numbers = weight.numpy() @ np.log(np.maximum(norm.cdf(y + 0.5) - norm.cdf(y - 0.5), 1e-308))[:, 0]
        found[std] = are_likelier([counts], [numbers])
        assert found[std] == (of_counts > of_numbers)
    assert set(found.values()) == {True, False}


def test_counts_are_noticed_kept_and_read_again(tmp_path: Path) -> None:
    X, y = visits()
    model = bali.BALIRegressor(**SMALL).fit(X, y)
    assert model.likelihood_ in ("poisson", "negative_binomial", "zero_inflated_negative_binomial")
    assert model.likelihood == "auto"
    assert (model.predict_quantiles(X[:20]) == np.round(model.predict_quantiles(X[:20]))).all()
    assert model.score(X, y) == pytest.approx(1.0 - np.mean((y - model.predict(X)) ** 2) / y.var())
    assert model.likelihood_.replace("_", " ") in str(model.health())
    model.save(tmp_path / "model.bali")
    again = bali.load(tmp_path / "model.bali")
    np.testing.assert_array_equal(again.predict(X), model.predict(X))
    by_name = bali.BALIRegressor(**SMALL, likelihood="gaussian").fit(X, y)
    assert by_name.likelihood_ == "gaussian"
    assert model.fit(X, X[:, 0]).likelihood_ == "gaussian"  # of other targets nothing is left of the counts


def test_whole_numbers_that_vary_less_than_counts_stay_numbers() -> None:
    rng = np.random.default_rng(0)
    X = rng.exponential(size=(400, 2))
    y = np.round(100 * X[:, 0] + rng.normal(size=400)).clip(0)
    y[0] = 0.0
    assert may_be_counts(y[:, None])
    assert bali.BALIRegressor(**SMALL).fit(X, y).likelihood_ == "gaussian"


def test_warm_starts_and_streams_go_on_with_counts() -> None:
    X, y = visits()
    model = bali.BALIRegressor(**SMALL, warm_start=True).fit(X, y)
    kept = model.likelihood_
    assert model.fit(X, y).likelihood_ == kept
    before = model.n_seen_
    assert model.partial_fit(X[:50], y[:50]).likelihood_ == kept
    assert model.n_seen_ == before + 50


@pytest.mark.parametrize("step", [60, 110])  # in the first training, and in the first steps of the second
def test_an_interruption_keeps_what_was_learnt_first(step: int) -> None:
    X, y = visits()

    def interrupt(progress: Progress) -> None:
        if progress.step >= step * progress.max_steps // 200:
            raise KeyboardInterrupt

    model = bali.BALIRegressor(**SMALL)
    with pytest.warns(ConvergenceWarning, match="interrupted"):
        model.fit_with_progress(X, y, interrupt)
    assert model.likelihood_ == "gaussian"
    assert np.isfinite(model.predict(X)).all()
