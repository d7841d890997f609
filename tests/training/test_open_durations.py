"""Durations that are not over yet, in `bali.fit`: their upper bounds are infinite."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

import bali

TIME, EVENT = torch.linspace(0.5, 9.0, 40), torch.arange(40) % 3 != 0
X = torch.linspace(-1, 1, 40)[:, None]


def test_open_durations_are_learnt_from() -> None:
    """To take the end of the study for the end of what still runs would make everything end sooner."""
    generator = torch.Generator().manual_seed(0)
    x, draws = torch.rand(300, 1, generator=generator), torch.rand(2, 300, generator=generator)
    over, study = -3.0 * draws[0].log(), -3.0 * draws[1].log()  # when it ends, and when nobody looks any more
    seen = torch.minimum(over, study)
    medians = []
    for event in ((over <= study).long(), torch.ones(300).long()):
        torch.manual_seed(0)
        targets = bali.likelihoods.durations(seen, event)
        fitted = bali.fit(nn.Linear(1, 2), (x, targets), bali.likelihoods.Weibull(), seed=0, verbose=False)
        medians.append(fitted.predict(x).median.mean().item())
    assert medians[0] == pytest.approx(3.0 * math.log(2.0), rel=0.25)  # that of the durations themselves
    assert medians[1] < 0.7 * medians[0]


def test_other_infinite_targets_are_refused() -> None:
    bounds = bali.likelihoods.durations(TIME, EVENT.long())
    net = nn.Linear(1, 2)
    with pytest.raises(ValueError, match="take Weibull or LogNormalDuration"):
        bali.fit(net, (X, bounds), bali.likelihoods.Gaussian(), seed=0, verbose=False)
    for wrong in (bounds.flip(1), bounds[:, 1], -bounds, torch.where(bounds.isinf(), torch.nan, bounds)):
        with pytest.raises(ValueError, match="y has NaN or infinite values"):
            bali.fit(net, (X, wrong), bali.likelihoods.Weibull(), seed=0, verbose=False)
