"""A benchmark of the paper, with its own settings, on one of the published splits."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

import bali
from bali_benchmarks import datasets
from support.networks import seeded

STEPS = 20_000


def paper_rate(step: int) -> float:
    """β = 0.2, a fifth of it after 60 % of the steps, and a fifth of that after 80 %."""
    return 0.2 if step <= 0.6 * STEPS else 0.04 if step <= 0.8 * STEPS else 0.008


@pytest.mark.slow
def test_yacht_is_as_accurate_as_in_the_paper() -> None:
    split = datasets.load("yacht").split(0)
    columns = np.concatenate([split.X_train, split.X_test])
    y = np.concatenate([split.y_train, split.y_test])
    train, test = slice(len(split.y_train)), slice(len(split.y_train), None)
    x = torch.as_tensor((columns - columns[train].mean(0)) / columns[train].std(0), dtype=torch.float32)
    shift, scale = y[train].mean(), y[train].std()
    targets = torch.as_tensor((y - shift) / scale, dtype=torch.float32)

    module = nn.Sequential(nn.Linear(6, 50), nn.ReLU(), nn.Linear(50, 1))
    generator = seeded(0)
    with torch.no_grad():
        for parameter, std in zip(module.parameters(), [1.0, 1.0, 51**-0.5, 51**-0.5], strict=True):
            parameter.normal_(0.0, std, generator=generator)
    run = bali.LayerwiseInference(
        module,
        bali.likelihoods.Gaussian(),
        len(split.y_train),
        step_size=0.3,
        prior_variance={"0": 40.0, "2": 40.0 / 51.0},
        noise_floor=0.01,
        output_noise_floor=1e-4,
        generator=seeded(1),
    )
    for step in range(1, STEPS + 1):
        run.step(x[train], targets[train], paper_rate(step))
    predictive = run.predict(x[test], 256)
    assert isinstance(predictive, bali.predictive.mixtures.RegressionPredictive)
    error = predictive.mean[:, 0].double().numpy() * scale + shift - y[test]
    assert np.sqrt(np.mean(error**2)) < 0.9  # the paper's mean over 20 random splits is 0.642
