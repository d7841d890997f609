"""Observations that cannot be: an error says what is wrong, and in which rows."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import distributions

from bali.predictive import likelihoods
from bali.predictive.likelihoods import Likelihood, durations, from_distribution

BAD: dict[str, tuple[Likelihood, int, list[Any], str]] = {
    "negative counts": (likelihoods.Poisson(), 1, [1, -2, 3, -1], r"Poisson needs counts 0, 1, 2, …; rows 1, 3 of .*has -2"),
    "halves of counts": (likelihoods.NegativeBinomial(), 2, [0.5, 1], r"NegativeBinomial needs counts .*; row 0 of y"),
    "missing counts": (likelihoods.ZeroInflatedNegativeBinomial(), 3, [0, math.nan], r"row 1 of y .*has nan"),
    "shares of one": (likelihoods.Beta(), 2, [0.5, 1.0, 0.0], r"Beta needs shares strictly between 0 and 1; rows 1, 2 of y"),
    "amounts of zero": (likelihoods.Gamma(), 2, [1.0, 0.0], r"Gamma needs positive numbers; row 1"),
    "negative amounts": (likelihoods.LogNormal(), 2, [-1.0, 2.0], r"LogNormal needs positive numbers; row 0"),
    "infinite numbers": (likelihoods.GaussianByRow(), 2, [0.0, math.inf], r"GaussianByRow needs finite numbers; row 1"),
    "durations of zero": (likelihoods.Weibull(), 2, [1.0, 0.0], r"durations must be positive; row 1"),
    "bounds in the wrong order": (likelihoods.Weibull(), 2, [[2.0, 1.0], [1, 1]], r"lower ≤ upper; row 0 of y .*has 2, 1"),
    "bounds that say nothing": (likelihoods.LogNormalDuration(), 2, [[1.0, 1.0], [0.0, math.inf]], r"say nothing; row 1"),
    "labels other than 0 and 1": (likelihoods.Bernoulli(), 1, [0.0, 2.0], r"Bernoulli needs targets 0 and 1; row 1"),
    "grades out of range": (likelihoods.Ordinal(), 2, [0, 3], r"class indices must be in 0..2; row 1"),
    "outside of a distribution's support": (
        from_distribution(lambda z: distributions.HalfNormal(z[..., 0].exp())),
        1,
        [1.0, -1.0],
        r"y must be in the support of HalfNormal.*; row 1",
    ),
    "an odd number of outputs": (likelihoods.Gamma(), 3, [1.0], r"Gamma needs 2 outputs .*; the network has 3"),
    "outputs of no covariance": (
        likelihoods.GaussianByRow(correlated=True),
        4,
        [1.0],
        r"needs D\(D \+ 3\)/2 outputs for D columns of y; the network has 4",
    ),
}


@pytest.mark.parametrize(("likelihood", "n_outputs", "y", "message"), BAD.values(), ids=BAD.keys())
def test_bad_targets_are_named_with_their_rows(likelihood: Likelihood, n_outputs: int, y: list[Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        likelihood.targets(torch.tensor(y), torch.zeros(len(y), n_outputs))


@pytest.mark.parametrize(
    ("time", "event", "message"),
    [
        ([1.0, 0.0], [1, 1], "durations must be positive; row 1"),
        ([1.0, 2.0, 3.0], [1, 2, 0], "events must be 0 or 1; row 1 of y .*has 2"),
        ([1.0, 2.0], [1], "a number for each row"),
    ],
)
def test_bad_times_and_events_are_named(time: list[float], event: list[int], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        durations(time, event)


def test_many_bad_rows_are_counted() -> None:
    with pytest.raises(ValueError, match="rows 0, 1, 2, 3, 4 and 15 more of y"):
        likelihoods.Poisson().targets(-torch.ones(20), torch.zeros(20, 1))


@pytest.mark.parametrize(
    ("likelihood", "n_outputs", "impossible"),
    [
        (likelihoods.Poisson(), 1, 0.5),
        (likelihoods.Poisson(), 1, -1.0),
        (likelihoods.Gamma(), 2, 0.0),
        (likelihoods.Beta(), 2, 1.0),
    ],
)
def test_a_prediction_gives_what_cannot_be_no_probability(likelihood: Likelihood, n_outputs: int, impossible: float) -> None:
    log_prob = likelihood.predictive(torch.zeros(3, 1, n_outputs)).log_prob(torch.tensor([impossible]))
    assert log_prob.tolist() == [-math.inf]
