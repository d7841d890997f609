"""A weaker prior in predictions, against conditioning on the same moments, and on images of another kind."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import bali
from bali import BALIClassifier
from bali.estimators import defaults
from bali.training.widening import widened
from bali_benchmarks.datasets import two_moons
from support.networks import data, inference, mlp
from support.oracles import assert_close


def test_the_spread_is_that_of_the_weaker_prior_and_the_rest_stays() -> None:
    x, y = data("gaussian", 40, 3, 2)
    run = inference(mlp((3, 6, 2)), "gaussian", n_data=40, effective_size=40.0)
    for _ in range(5):
        run.step(x, y)
    before = run.state_dict()["tensors"]
    first, second = run.posteriors
    wide = widened(run.posterior(), run.state, {first: 100.0})
    prior = {name: run.state.layers[name].prior.precision.dense() for name in run.posteriors}
    precision = {name: posterior.precision.dense() for name, posterior in run.posteriors.items()}
    assert_close(wide.posteriors[first].precision.dense(), prior[first] / 100.0 + (precision[first] - prior[first]))
    assert_close(wide.posteriors[first].mean, run.posteriors[first].mean)
    assert_close(wide.posteriors[first].scale, run.posteriors[first].scale)
    assert wide.posteriors[second] is run.posteriors[second]
    assert all(torch.equal(tensor, before[key]) for key, tensor in run.state_dict()["tensors"].items())
    assert widened(run.posterior(), run.state, {}).posteriors == run.posteriors
    everywhere = widened(run.posterior(), run.state, {first: 100.0, second: 100.0}).posteriors
    assert_close(everywhere[first].precision.dense(), wide.posteriors[first].precision.dense())
    assert_close(precision[second] - everywhere[second].precision.dense(), 0.99 * prior[second])


def test_only_classes_of_tables_like_images_and_of_few_columns_have_it() -> None:
    many, few = defaults.MANY_COLUMNS, defaults.FEW_COLUMNS
    assert defaults.prior_widening(500, few, classes=True) == 1000.0
    assert defaults.prior_widening(500, few + 1, classes=True) == defaults.prior_widening(500, few, classes=False) == 1.0
    assert defaults.prior_widening(500, many, classes=True) == 100.0
    assert defaults.prior_widening(1e5, many - 1, classes=True) == 1.0
    assert defaults.prior_widening(1e5, many, classes=False) == 1.0


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_pixels_that_were_always_blank_are_noticed(tmp_path: Path) -> None:
    """Rows with something where all others are blank are told by what weights there might be; others stay as they are."""
    rng = np.random.default_rng(0)
    X = np.zeros((700, 120))
    X[:, :100] = rng.uniform(0, 255, (700, 100)).round()
    y = (X[:, :50].mean(1) > X[:, 50:100].mean(1)).astype(int)
    model = BALIClassifier(hidden_layer_sizes=(20,), max_iter=100, n_samples=96, random_state=0).fit(X[:500], y[:500])
    assert model.recipe_.prior_widening == (100.0, 1.0)
    known, foreign = X[500:], X[500:].copy()
    foreign[:, 100] = 10.0

    def information(rows: np.ndarray[Any, Any]) -> float:
        return float(model.pred_dist(rows).mutual_information.mean())

    usual, told = information(known), information(foreign)
    model.save(tmp_path / "m.bali")
    again = bali.load(tmp_path / "m.bali")
    np.testing.assert_array_equal(again.predict_proba(foreign), model.predict_proba(foreign))
    model.recipe_ = replace(model.recipe_, prior_widening=(1.0, 1.0))
    assert information(known) == pytest.approx(usual, rel=0.1)
    assert told > 2.0 * information(foreign)


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_classes_of_few_columns_are_less_sure_away_from_the_rows_and_as_sure_among_them() -> None:
    moons = two_moons(0)
    X, y = moons.x_train, moons.y_train.ravel()
    model = BALIClassifier(n_members=4, max_iter=400, prior_variance=40.0, random_state=1).fit(X, y)
    assert model.recipe_.prior_widening == (1000.0, 1000.0, 1000.0)
    away = 4.0 * (X - X.mean(0))

    def information() -> list[float]:
        return [float(model.pred_dist(rows).mutual_information.mean()) for rows in (X, away)]

    inside, outside = information()
    model.recipe_ = replace(model.recipe_, prior_widening=(1.0, 1.0, 1.0))
    narrow_inside, narrow_outside = information()
    assert inside < narrow_inside + 0.01
    assert outside > 1.5 * narrow_outside
    assert outside > 5.0 * inside
