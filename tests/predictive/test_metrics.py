"""Metrics against definitions written out by hand, SciPy, or counting."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import Literal

import numpy as np
import pytest
import torch
from scipy import stats

from bali.predictive import metrics
from bali.predictive.mixtures import ClassPredictive, RegressionPredictive


def regression(n_components: int = 5, n: int = 40, d: int = 1, noise: float = 0.3) -> RegressionPredictive:
    generator = torch.Generator().manual_seed(1)
    means = torch.randn(n_components, n, d, generator=generator, dtype=torch.float64)
    return RegressionPredictive(means, noise * torch.eye(d, dtype=torch.float64)[None])


def classes(n: int = 200, n_classes: int = 3) -> tuple[ClassPredictive, torch.Tensor]:
    generator = torch.Generator().manual_seed(2)
    logits = 1.5 * torch.randn(4, n, n_classes, generator=generator, dtype=torch.float64)
    return ClassPredictive(logits.softmax(-1)), torch.randint(n_classes, (n,), generator=generator)


def certain(*p: float) -> ClassPredictive:
    """Probabilities of the second of two classes, without spread."""
    second = torch.tensor(p, dtype=torch.float64)
    return ClassPredictive(torch.stack([1 - second, second], -1)[None])


# --- regression -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("d", [1, 2])
def test_rmse_is_root_of_mean_square_over_all_entries(d: int) -> None:
    predictive = regression(d=d)
    y = np.random.default_rng(0).normal(size=(40, d))
    errors = [(y[i, j] - predictive.means[:, i, j].mean().item()) ** 2 for i in range(40) for j in range(d)]
    assert metrics.rmse(predictive, y) == pytest.approx(math.sqrt(sum(errors) / len(errors)), rel=1e-12)


def test_one_dimensional_targets_are_a_column_and_tensors_are_taken_too() -> None:
    predictive, y = regression(), np.linspace(-1, 1, 40)
    assert metrics.rmse(predictive, y) == metrics.rmse(predictive, y[:, None]) == metrics.rmse(predictive, torch.tensor(y))
    assert metrics.log_likelihood(predictive, y) == metrics.log_likelihood(predictive, torch.tensor(y))


def test_log_likelihood_is_that_of_the_mixture() -> None:
    predictive, y = regression(noise=0.3), np.linspace(-2, 2, 40)
    density = stats.norm.pdf(y, predictive.means[..., 0].numpy(), math.sqrt(0.3)).mean(0)
    assert metrics.log_likelihood(predictive, y) == pytest.approx(np.log(density).mean(), rel=1e-10)


@pytest.mark.parametrize("coverage", [0.5, 0.9])
def test_coverage_counts_points_inside_the_interval(coverage: float) -> None:
    predictive = RegressionPredictive(torch.zeros(1, 7, 1), torch.ones(1, 1, 1))
    half_width = stats.norm.ppf((1 + coverage) / 2)
    y = half_width * np.array([-1.01, -0.99, -0.5, 0.0, 0.5, 0.99, 1.01])
    assert metrics.interval_coverage(predictive, y, coverage) == pytest.approx(5 / 7)


def test_coverage_of_a_right_model_is_nominal() -> None:
    n = 20_000
    predictive = RegressionPredictive(torch.zeros(1, n, 1), torch.ones(1, 1, 1))
    y = np.random.default_rng(3).normal(size=n)
    standard_error = math.sqrt(0.9 * 0.1 / n)
    assert abs(metrics.interval_coverage(predictive, y, 0.9) - 0.9) < 4 * standard_error


def test_shape_mismatch_is_an_error() -> None:
    with pytest.raises(ValueError, match="shape"):
        metrics.rmse(regression(d=2), np.zeros(40))
    with pytest.raises(ValueError, match="shape"):
        metrics.interval_coverage(regression(), np.zeros(39))


# --- classification ---------------------------------------------------------------------------------------------


def test_accuracy_counts() -> None:
    assert metrics.accuracy(certain(0.9, 0.2, 0.6, 0.4), [1, 0, 0, 1]) == 0.5


def test_log_likelihood_of_classes() -> None:
    expected = (math.log(0.9) + math.log(0.8) + math.log(0.4)) / 3
    assert metrics.log_likelihood(certain(0.9, 0.2, 0.6), np.array([1, 0, 0])) == pytest.approx(expected)


def test_brier_is_the_squared_distance_to_the_observed_class() -> None:
    predictive, y = classes()
    p = predictive.probabilities.numpy()
    expected = np.mean([sum((p[i, c] - (y[i] == c).item()) ** 2 for c in range(3)) for i in range(len(p))])
    assert metrics.brier(predictive, y) == pytest.approx(expected, rel=1e-10)
    assert metrics.brier(certain(0.7), [1]) == pytest.approx(2 * 0.3**2)


def test_brier_when_a_class_was_never_observed() -> None:
    predictive = ClassPredictive(torch.tensor([[[0.5, 0.3, 0.2], [0.1, 0.8, 0.1]]], dtype=torch.float64))
    expected = ((0.25 + 0.09 + 0.04) + (0.01 + 0.04 + 0.01)) / 2
    assert metrics.brier(predictive, [0, 1]) == pytest.approx(expected)


def naive_ece(p: np.ndarray, y: np.ndarray, n_bins: int) -> float:
    """The definition, one bin at a time."""
    total = 0.0
    for b in range(n_bins):
        inside = [i for i in range(len(p)) if b / n_bins < p[i].max() <= (b + 1) / n_bins]
        if inside:
            confidence = sum(p[i].max() for i in inside) / len(inside)
            correct = sum(p[i].argmax() == y[i] for i in inside) / len(inside)
            total += len(inside) / len(p) * abs(confidence - correct)
    return total


@pytest.mark.parametrize("n_bins", [1, 5, 15])
def test_ece_is_the_definition(n_bins: int) -> None:
    predictive, y = classes()
    expected = naive_ece(predictive.probabilities.numpy(), y.numpy(), n_bins)
    assert metrics.expected_calibration_error(predictive, y, n_bins) == pytest.approx(expected, rel=1e-10)


def test_ece_by_default_has_fifteen_bins() -> None:
    predictive, y = classes()
    assert metrics.expected_calibration_error(predictive, y) == metrics.expected_calibration_error(predictive, y, 15)


def test_ece_of_known_cases() -> None:
    assert metrics.expected_calibration_error(certain(1.0, 0.0), [1, 0]) == 0.0
    assert metrics.expected_calibration_error(certain(1.0, 0.0), [0, 1]) == 1.0
    # Four predictions at 0.75, of which three are right.
    assert metrics.expected_calibration_error(certain(0.75, 0.75, 0.75, 0.75), [1, 1, 1, 0]) == pytest.approx(0.0)


def test_auc_is_the_share_of_pairs_in_the_right_order() -> None:
    p = [0.1, 0.4, 0.35, 0.8, 0.4, 0.9]
    y = [0, 0, 1, 1, 1, 0]
    pairs = list(
        itertools.product([a for a, k in zip(p, y, strict=True) if k], [b for b, k in zip(p, y, strict=True) if not k])
    )
    expected = sum((a > b) + 0.5 * (a == b) for a, b in pairs) / len(pairs)
    assert metrics.auc(certain(*p), y) == pytest.approx(expected)


def test_auc_of_many_classes_is_the_mean_of_one_against_the_rest() -> None:
    predictive, y = classes()
    p = predictive.probabilities
    each = [metrics.auc(certain(*p[:, c].tolist()), (y == c).long()) for c in range(3)]
    assert metrics.auc(predictive, y) == pytest.approx(sum(each) / 3)


@pytest.mark.parametrize("metric", [metrics.accuracy, metrics.brier, metrics.auc, metrics.expected_calibration_error])
def test_targets_must_be_classes_of_the_prediction(metric: Callable[[ClassPredictive, list[int]], float]) -> None:
    with pytest.raises(ValueError, match="class indices"):
        metric(certain(0.5, 0.5), [0, 2])
    with pytest.raises(ValueError, match="rows"):
        metric(certain(0.5, 0.5), [0, 1, 1])


def test_single_precision_probabilities_are_normalised() -> None:
    p = torch.tensor([[[0.1, 0.2, 0.7], [1 / 3, 1 / 3, 1 / 3]]], dtype=torch.float32)
    assert metrics.brier(ClassPredictive(p), [2, 0]) == pytest.approx((0.14 + 2 / 3) / 2, rel=1e-6)


# --- detection --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("score", ["entropy", "mutual_information"])
def test_detection_counts_pairs(score: Literal["entropy", "mutual_information"]) -> None:
    inside, outside = classes(60)[0], ClassPredictive(classes(90)[0].component_probabilities[:, 60:].flip(-1) ** 0.5)
    outside = ClassPredictive(outside.component_probabilities / outside.component_probabilities.sum(-1, keepdim=True))
    found = metrics.out_of_distribution(inside, outside, score)
    low, high = getattr(inside, score).numpy(), getattr(outside, score).numpy()
    pairs = [(h > v) + 0.5 * (h == v) for h in high for v in low]
    assert found.auroc == pytest.approx(np.mean(pairs))
    threshold = np.sort(low)[math.ceil(0.95 * len(low)) - 1]  # passes 95 % of the rows from inside
    assert found.fpr95 == pytest.approx(np.mean(high <= threshold))
    order = np.argsort(-np.concatenate([low, high]))
    hits = np.concatenate([np.zeros(len(low)), np.ones(len(high))])[order]
    precision = np.cumsum(hits) / np.arange(1, len(hits) + 1)
    assert found.aupr == pytest.approx((precision * hits).sum() / hits.sum())


def test_detection_of_what_is_obvious_and_of_what_is_the_same() -> None:
    sure, unsure = certain(0.001, 0.999, 0.002), certain(0.5, 0.45, 0.55)
    assert metrics.out_of_distribution(sure, unsure) == metrics.Detection(1.0, 1.0, 0.0)
    same = metrics.out_of_distribution(unsure, unsure)
    assert same.auroc == 0.5
    assert same.fpr95 == 1.0
