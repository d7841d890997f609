"""Writes small files of `bali.fit` and `LayerwiseInference`, and what they predict, to tests/network_fixtures/VERSION.

A version is written once. Run with src and tests on the path: python tests/support/write_network_fixtures.py
"""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor, nn

import bali
from bali.predictive.mixtures import ClassPredictive
from support.networks import seeded

FIXTURES = Path(__file__).parents[1] / "network_fixtures"
ALGORITHM = "layerwise.bali"


def perceptron() -> nn.Module:
    return nn.Sequential(nn.Linear(3, 5), nn.LayerNorm(5), nn.Tanh(), nn.Linear(5, 1))


def convolutional() -> nn.Module:
    return nn.Sequential(
        nn.Unflatten(1, (1, 3)), nn.Conv1d(1, 3, 2), nn.BatchNorm1d(3), nn.ReLU(), nn.Flatten(), nn.Linear(6, 3)
    )


#: By the name of the file; the architecture is all that a file does not hold.
MODULES: dict[str, Callable[[], nn.Module]] = {
    "regression.bali": perceptron,
    "members.bali": perceptron,
    "after-earlier-data.bali": perceptron,
    "pretrained.bali": perceptron,
    "counts.bali": perceptron,
    "classes.bali": convolutional,
}


def rows() -> Tensor:
    return torch.randn(60, 3, generator=seeded(0))


def _targets(x: Tensor) -> Tensor:
    return 40.0 + 3.0 * x[:, 0].sin() + 0.5 * torch.randn(len(x), generator=seeded(1))


def algorithm() -> bali.LayerwiseInference:
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 1))
    return bali.LayerwiseInference(network, bali.likelihoods.Gaussian(), n_data=60)


def predictions(path: Path) -> dict[str, list[float]]:
    """What a file says about a few rows, by the samples that its own seed draws."""
    x = rows()[:6]
    if path.name == ALGORITHM:
        inference = algorithm()
        inference.load(path)
        with torch.no_grad():
            return {"mean": inference.module(x).flatten().tolist()}
    fitted = bali.load(path, module=MODULES[path.name]())
    predictive = fitted.predict(x, n_samples=8)
    if isinstance(predictive, ClassPredictive):
        return {"probabilities": predictive.probabilities.flatten().tolist()}
    return {"mean": predictive.mean.flatten().tolist(), "std": predictive.std.flatten().tolist()}


def write(folder: Path) -> None:
    folder.mkdir(parents=True)
    x, gaussian = rows(), bali.likelihoods.Gaussian()
    y = _targets(x)

    def fit(name: str, likelihood: bali.likelihoods.Likelihood, y: Tensor, **options: object) -> bali.Fitted:
        torch.manual_seed(0)
        fitted = bali.fit(MODULES[name](), (x, y), likelihood, seed=0, verbose=False, **({"epochs": 20} | options))  # type: ignore[arg-type]
        fitted.save(folder / name)
        return fitted

    first = fit("regression.bali", gaussian, y)
    fit("members.bali", gaussian, y, members=2)
    fit("after-earlier-data.bali", gaussian, y + 0.5, prior=first)
    fit("pretrained.bali", gaussian, y, epochs=0)
    fit("counts.bali", bali.likelihoods.Poisson(), torch.poisson(x[:, 0].exp(), generator=seeded(2)))
    fit("classes.bali", bali.likelihoods.Categorical(), (x[:, 0] > 0).long() + (x[:, 1] > 0.5).long())
    inference = algorithm()
    for start in range(0, 60, 20):
        inference.step(x[start : start + 20], y[start : start + 20, None] - 40.0)
    inference.save(folder / ALGORITHM)
    found = {path.name: predictions(path) for path in sorted(folder.iterdir())}
    (folder / "predictions.json").write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    folder = FIXTURES / ".".join(bali.__version__.split(".")[:2])
    if folder.exists():
        sys.exit(f"{folder} exists: the files of a version are not written again")
    try:
        write(folder)
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise
