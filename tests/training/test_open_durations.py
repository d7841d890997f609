"""Durations that are not over yet, in `bali.fit`: their upper bounds are infinite."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import bali

TIME, EVENT = torch.linspace(0.5, 9.0, 40), torch.arange(40) % 3 != 0
X = torch.linspace(-1, 1, 40)[:, None]


def test_open_durations_are_learnt_from() -> None:
    """To take the end of the study for the end of what still runs would make everything end sooner."""
    likelihood = bali.likelihoods.Weibull()
    common = {"epochs": 30, "seed": 0, "verbose": False}
    medians = []
    for event in (EVENT.long(), torch.ones(40).long()):
        torch.manual_seed(0)
        net = nn.Sequential(nn.Linear(1, 8), nn.Tanh(), nn.Linear(8, 2))
        fitted = bali.fit(net, (X, bali.likelihoods.durations(TIME, event)), likelihood, **common)  # type: ignore[arg-type]
        medians.append(fitted.predict(X).median)
    assert torch.isfinite(medians[0]).all()
    assert medians[0].mean() > medians[1].mean()


def test_other_infinite_targets_are_refused() -> None:
    bounds = bali.likelihoods.durations(TIME, EVENT.long())
    net = nn.Linear(1, 2)
    with pytest.raises(ValueError, match="take Weibull or LogNormalDuration"):
        bali.fit(net, (X, bounds), bali.likelihoods.Gaussian(), seed=0, verbose=False)
    for wrong in (bounds.flip(1), bounds[:, 1], -bounds, torch.where(bounds.isinf(), torch.nan, bounds)):
        with pytest.raises(ValueError, match="y has NaN or infinite values"):
            bali.fit(net, (X, wrong), bali.likelihoods.Weibull(), seed=0, verbose=False)
