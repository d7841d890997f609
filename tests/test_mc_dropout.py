"""Monte Carlo dropout as a baseline."""

import numpy as np
import torch
from sklearn.base import clone
from sklearn.datasets import load_iris

from bali import metrics
from bali.baselines.mc_dropout import MCDropout
from bali.predictive import ClassPredictive, RegressionPredictive


def test_regression_learns_the_curve_and_its_noise() -> None:
    rng = np.random.default_rng(0)
    X = rng.uniform(-2, 2, size=(400, 1))
    y = 10 * np.sin(2 * X[:, 0]) + rng.normal(size=400)
    predictive = (
        MCDropout(max_epochs=150, learning_rate=0.01, n_samples=32, rates=(0.01, 0.5))
        .fit(X[:300], y[:300])
        .pred_dist(X[300:])
    )
    assert isinstance(predictive, RegressionPredictive)
    target = torch.as_tensor(y[300:])
    assert metrics.rmse(predictive, target) < 2.5
    assert 0.75 <= metrics.interval_coverage(predictive, target, 0.9) <= 1.0


def test_validation_prefers_the_rate_that_fits() -> None:
    rng = np.random.default_rng(0)
    X = rng.uniform(-2, 2, size=(300, 1))
    model = MCDropout(max_epochs=100, rates=(0.01, 0.9)).fit(X, np.sin(3 * X[:, 0]))
    assert model.rate_ == 0.01


def test_classification_gives_probabilities_reproducibly() -> None:
    X, y = load_iris(return_X_y=True)
    model = MCDropout(classification=True, max_epochs=60, learning_rate=0.01, n_samples=16, rates=(0.05,)).fit(X, y)
    predictive = model.pred_dist(X)
    assert isinstance(predictive, ClassPredictive)
    assert metrics.accuracy(predictive, torch.as_tensor(y)) > 0.9
    for again in (model.pred_dist(X), clone(model).fit(X, y).pred_dist(X)):
        torch.testing.assert_close(
            again.component_log_prob(torch.as_tensor(y)), predictive.component_log_prob(torch.as_tensor(y))
        )
