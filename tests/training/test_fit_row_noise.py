"""Noise that depends on the row, by `bali.fit` without a setting: of one output, and of two that go together."""

from __future__ import annotations

import numpy as np
import torch
from scipy import stats
from torch import Tensor, nn

import bali
from bali.predictive import metrics
from bali.predictive.family_predictive import FamilyPredictive
from support.networks import seeded

N, N_TEST = 1000, 2000


def rows(n: int, seed: int) -> Tensor:
    return torch.randn(n, 2, generator=seeded(seed))


def scale(x: Tensor) -> Tensor:
    return torch.exp(-2.0 + 0.7 * x[:, 1:])


def noise(n: int, seed: int) -> Tensor:
    return torch.randn(n, 1, generator=seeded(seed))


def test_the_noise_of_a_row_is_found() -> None:
    x, new = rows(N, 0), rows(N_TEST, 1)
    y, observed = (torch.sin(at[:, :1]) + scale(at) * noise(len(at), seed) for at, seed in ((x, 2), (new, 3)))
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(2, 32), nn.Tanh(), nn.Linear(32, 2))
    prediction = bali.fit(module, (x, y), bali.likelihoods.GaussianByRow(), seed=0).predict(new)
    mean, std = torch.sin(new[:, :1]), scale(new)
    widths = (std, std.square().mean().sqrt().expand_as(std))
    truth, constant = (float(np.mean(stats.norm.logpdf(observed, mean, width))) for width in widths)
    assert metrics.log_likelihood(prediction, observed) > truth - 0.25 * (truth - constant)
    assert torch.corrcoef(torch.stack([prediction.aleatoric.log()[:, 0], scale(new).log()[:, 0]]))[0, 1] > 0.9


def test_outputs_go_together_as_much_as_the_row_says() -> None:
    """The second output has half of the first one's noise, and noise of its own that is the same in every row."""
    x, new = rows(N, 4), rows(200, 5)
    first, own = scale(x) * noise(N, 6), 0.1 * noise(N, 7)
    y = torch.cat([x[:, :1] + first, 0.5 * first + own], 1)
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(2, 32), nn.Tanh(), nn.Linear(32, 5))
    prediction = bali.fit(module, (x, y), bali.likelihoods.GaussianByRow(correlated=True), seed=0).predict(new)
    assert isinstance(prediction, FamilyPredictive)
    found = prediction.covariance
    correlation = found[:, 0, 1] / (found[:, 0, 0] * found[:, 1, 1]).sqrt()
    half = 0.5 * scale(new)[:, 0]
    expected = half / (half.square() + 0.01).sqrt()
    assert torch.corrcoef(torch.stack([correlation, expected]))[0, 1] > 0.9
    assert float((correlation - expected).abs().mean()) < 0.1
