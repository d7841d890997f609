"""What held-out examples say about a fitted network: every observation of an example counts."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

import bali
from bali.training.fit_calibration import WIDTHS, calibrated_at, likely_width
from support.networks import seeded


@pytest.mark.parametrize("kind", ["classes", "numbers", "counts"])
def test_a_sequence_counts_as_all_of_its_observations(kind: str) -> None:
    x = torch.randn(60, 5, 2, generator=seeded(0))
    noise = torch.randn(60, 5, 1, generator=seeded(1))
    y, likelihood = {
        "classes": ((x[..., 0] + noise[..., 0] > 0).long(), bali.likelihoods.Categorical()),
        "numbers": (x[..., :1] + noise, bali.likelihoods.Gaussian()),
        "counts": (torch.poisson(x[..., :1].exp(), generator=seeded(2)), bali.likelihoods.Poisson()),
    }[kind]
    torch.manual_seed(0)
    fitted = bali.fit(nn.Linear(2, 2 if kind == "classes" else 1), (x, y), likelihood, epochs=20, seed=0, verbose=False)
    if kind == "numbers":
        assert fitted.units is not None
        y = (y - fitted.units.shift) / fitted.units.scale
    width = 1e-4
    of_sequences = calibrated_at(fitted, x, y, width)[0]
    one_by_one = calibrated_at(fitted, x.reshape(-1, 2), y.reshape(-1, *y.shape[2:]), width)[0]
    assert of_sequences == pytest.approx(one_by_one, rel=0.02)  # other samples of the same weights
    assert abs(of_sequences) > 100.0  # of 300 observations


def test_the_width_is_nearly_the_largest_that_examples_cannot_tell_from_the_best() -> None:
    def score(n: float, best: float) -> float:
        """A parabola in the logarithm: its distribution is normal, with a variance of 1/n."""
        return likely_width(WIDTHS, lambda width: -0.5 * n * (math.log10(width) - best) ** 2)

    assert math.log10(score(1.0, -3.0)) == pytest.approx(-3.0 + 1.2816, abs=0.3)
    assert score(100.0, -5.0) < score(1.0, -5.0)
    assert score(0.0, -3.0) == pytest.approx(10 ** (-6 + 0.5 * (0.9 * 11 - 0.5)))  # all are alike: nine tenths of the way
