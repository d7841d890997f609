"""Small tables with known truth: what is learned with pseudo-targets at the output comes close to it."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, distributions, nn

import bali
from bali.predictive import metrics
from bali.predictive.likelihoods import GaussianByRow, Likelihood, Poisson, Weibull, durations

N, N_TEST = 800, 2000


def rows(n: int, seed: int) -> Tensor:
    return 2 * torch.rand(n, 2, generator=torch.Generator().manual_seed(seed)) - 1


def fitted(likelihood: Likelihood, n_outputs: int, x: Tensor, y: Tensor) -> bali.LayerwiseInference:
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(2, 24), nn.Tanh(), nn.Linear(24, n_outputs))
    generator = torch.Generator().manual_seed(1)
    inference = bali.LayerwiseInference(module, likelihood, len(x), generator=generator, target_noise=False)
    for step in range(1, 251):
        inference.step(x, y, step_size=0.5 / (1 + step / 60))
    return inference


def test_poisson_regression_finds_the_rate() -> None:
    def truth(x: Tensor) -> Any:
        return distributions.Poisson(torch.exp(1 + x[:, :1] - torch.sin(3 * x[:, 1:])))

    torch.manual_seed(3)
    x, new = rows(N, 0), rows(N_TEST, 1)
    y, y_new = truth(x).sample(), truth(new).sample()
    prediction = fitted(Poisson(), 1, x, y).predict(new, 32)
    best = float(truth(new).log_prob(y_new).mean())
    same_for_all: Any = distributions.Poisson(y.mean())
    constant = float(same_for_all.log_prob(y_new).mean())
    found = metrics.log_likelihood(prediction, y_new)
    assert found > best - 0.1 * (best - constant)


def test_noise_by_row_finds_the_noise() -> None:
    def truth(x: Tensor) -> Any:
        return distributions.Normal(torch.sin(2 * x[:, :1]), torch.exp(-1.5 + 1.2 * x[:, 1:]))

    torch.manual_seed(4)
    x, new = rows(N, 2), rows(N_TEST, 3)
    y, y_new = truth(x).sample(), truth(new).sample()
    prediction = fitted(GaussianByRow(), 2, x, y).predict(new, 32)
    best = float(truth(new).log_prob(y_new).mean())
    same_noise: Any = distributions.Normal(truth(new).mean, (y - truth(x).mean).std())
    constant = float(same_noise.log_prob(y_new).mean())
    found = metrics.log_likelihood(prediction, y_new)
    assert found > best - 0.35 * (best - constant)
    spread = torch.corrcoef(torch.stack([prediction.aleatoric[:, 0].log(), truth(new).stddev[:, 0].log()]))[0, 1]
    assert spread > 0.9


def test_censored_durations_are_learned() -> None:
    def truth(x: Tensor) -> Any:
        return distributions.Weibull(torch.exp(2 + x[:, 0]), torch.full((len(x),), 1.5))

    torch.manual_seed(5)
    x, new = rows(N, 4), rows(N_TEST, 5)
    time, end = truth(x).sample(), 12 * torch.rand(N)
    y, y_new = durations(torch.minimum(time, end), time <= end), truth(new).sample()
    prediction = fitted(Weibull(), 2, x, y).predict(new, 32)
    best = float(truth(new).log_prob(y_new).mean())
    assert metrics.log_likelihood(prediction, y_new) > best - 0.05
    assert metrics.concordance(prediction, durations(y_new)) > 0.65
