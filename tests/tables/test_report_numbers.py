"""What stands behind the report's figures and sentences: calibration, findings, numbers as text."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from scipy import stats

from bali.tables.html_report import holdout
from bali.tables.html_report.findings import findings
from bali.tables.html_report.holdout import ClassHoldout, RegressionHoldout, read_holdout
from bali.tables.html_report.wording import duration, number
from support.report_cases import Case, binary, multiclass, regression

# --- calibration ------------------------------------------------------------------------------------------------------


def regression_rows() -> RegressionHoldout:
    held = read_holdout(regression()[1])
    assert isinstance(held, RegressionHoldout)
    return held


def class_rows(case: Case) -> ClassHoldout:
    held = read_holdout(case[1])
    assert isinstance(held, ClassHoldout)
    return held


def test_coverage_curve() -> None:
    held = regression_rows()
    curve = holdout.coverage_curve(held)
    assert curve.nominal[[0, 9, -1]] == pytest.approx([0.05, 0.5, 0.95])
    for level, share in zip(curve.nominal, curve.observed, strict=True):
        low, high = stats.norm.interval(level, held.mean, held.std)
        assert share == np.mean((low <= held.y) & (held.y <= high))


def test_chance_range_holds_what_chance_does() -> None:
    low, high = holdout.chance_range(60, 0.9)
    draws = np.random.default_rng(0).binomial(60, 0.9, 20_000) / 60
    assert 0.95 <= np.mean((low <= draws) & (draws <= high)) < 0.99


def test_truth_is_uniform_in_an_honest_prediction() -> None:
    rng = np.random.default_rng(0)
    mean, std = rng.normal(size=500), rng.uniform(0.5, 2.0, 500)
    honest = replace(regression_rows(), mean=mean, std=std, y=rng.normal(mean, std))
    assert stats.kstest(honest.transforms, "uniform").pvalue > 0.01
    doubtful = replace(honest, std=3 * std)
    assert stats.kstest(doubtful.transforms, "uniform").pvalue < 1e-6


@pytest.mark.parametrize("case", [binary, multiclass], ids=["binary", "multiclass"])
def test_reliability_bins_hold_every_row(case: Any) -> None:
    stated, true = holdout.stated_probabilities(class_rows(case()))
    bins = holdout.reliability(stated, true)
    assert sum(b.n_rows for b in bins) == 60
    assert all(b.n_rows >= 10 for b in bins)
    assert sum(b.n_rows * b.stated for b in bins) == pytest.approx(stated.sum())
    assert sum(b.n_rows * b.observed for b in bins) == pytest.approx(true.sum())
    assert all(b.low <= b.observed <= b.high for b in bins)


def test_reliability_of_full_bins_is_not_merged() -> None:
    stated = np.repeat([0.05, 0.55, 0.95], 20)
    true = np.tile([True, False], 30)
    bins = holdout.reliability(stated, true)
    assert [b.stated for b in bins] == pytest.approx([0.05, 0.55, 0.95])
    assert [b.observed for b in bins] == [0.5, 0.5, 0.5]


def test_uncertainty_groups_are_ordered() -> None:
    uncertainty = np.random.default_rng(0).random(100)
    groups = holdout.uncertainty_groups(uncertainty)
    assert sorted(np.concatenate(groups)) == list(range(100))
    highest = [uncertainty[g].max() for g in groups]
    assert highest == sorted(highest)
    assert len(holdout.uncertainty_groups(uncertainty[:5])) == 1


# --- sentences ----------------------------------------------------------------------------------------------------------


def said(held: RegressionHoldout | ClassHoldout, scores: dict[str, float] | None = None) -> list[tuple[str, str]]:
    return [(f.tone, f.text) for f in findings(held, {"metrics": scores or {}, "n_holdout": len(held.row)})]


def test_sentences_about_intervals() -> None:
    rng = np.random.default_rng(0)
    n = 400
    mean, std, variance = rng.normal(size=n), rng.uniform(0.1, 0.4, n), np.full(n, 0.5)
    held = RegressionHoldout(
        list(range(n)), rng.normal(mean, std), mean, std, mean - 1.645 * std, mean + 1.645 * std, variance, variance
    )
    tones = dict.fromkeys(tone for tone, _ in said(held))
    assert list(tones) == ["good", "neutral"]
    assert any("as promised" in text for _, text in said(held))
    assert any("About 50.0\u202f% of the uncertainty is the model's own" in text for _, text in said(held))
    narrow = replace(held, low=mean - 0.5 * std, high=mean + 0.5 * std)
    assert any(tone == "attention" and "surer than it should be" in text for tone, text in said(narrow))
    wide = replace(held, low=mean - 9 * std, high=mean + 9 * std)
    assert any(tone == "attention" and "could be surer" in text for tone, text in said(wide))
    useless = replace(held, mean=np.full(n, 5.0))
    assert any(tone == "attention" and "learnt little" in text for tone, text in said(useless))
    assert any(tone == "good" and "knows where it is weak" in text for tone, text in said(held))
    contrary = replace(held, std=1.0 / std)
    assert any(tone == "attention" and "surer where it is wrong" in text for tone, text in said(contrary))
    same = replace(held, std=np.full(n, 0.3))
    assert any("nearly the same for all rows" in text for _, text in said(same))


def test_sentences_about_classes() -> None:
    rng = np.random.default_rng(1)  # one seed in twenty is called off by chance
    n = 600
    p = rng.beta(0.5, 0.5, n)
    probabilities = np.column_stack([1 - p, p])
    entropy = -(probabilities * np.log(probabilities + 1e-12)).sum(1)
    y = (rng.random(n) < p).astype(np.int64)
    held = ClassHoldout(list(range(n)), y, probabilities, ["no", "yes"], entropy, 0.25 * entropy)
    assert [tone for tone, _ in said(held)] == ["good", "good", "good", "neutral"]
    assert any("About 25.0\u202f% of the uncertainty is the model's own" in text for _, text in said(held))
    sharp = np.clip(np.round(probabilities), 0.01, 0.99)
    assert any("surer than it should be" in text for _, text in said(replace(held, probabilities=sharp)))
    vague = 0.5 + 0.3 * (probabilities - 0.5)
    assert any("could be surer" in text for _, text in said(replace(held, probabilities=vague)))
    contrary = replace(held, entropy=-entropy)
    assert any(tone == "attention" and "surer where it is wrong" in text for tone, text in said(contrary))
    unrelated = replace(held, entropy=rng.random(n))
    assert any(tone == "neutral" and "do not tell for certain" in text for tone, text in said(unrelated))
    perfect = replace(held, y=probabilities.argmax(1))
    assert any("no mistakes" in text for _, text in said(perfect))


def test_sentences_take_the_scores_of_all_rows_from_the_record() -> None:
    held = regression_rows()
    texts = " ".join(text for _, text in said(held, {"mae": 1234.5, "coverage_90": 0.4321}))
    assert "off by 1,234 on average" in texts or "off by 1,235 on average" in texts
    assert "43.2\u202f% hold the true value" in texts


@pytest.mark.parametrize(
    ("value", "text"),
    [(1234567.0, "1,234,567"), (0.012345, "0.01235"), (-5.43812, "−5.438"), (12, "12"), (1e-7, "1.000e−07"), (0.0, "0"),
     (float("inf"), "inf"), (1234567, "1,234,567")],
)  # fmt: skip
def test_numbers(value: float, text: str) -> None:
    assert number(value) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.2, "less than a second"), (1.2, "1 second"), (70, "70 seconds"), (600, "10 minutes"), (9000, "2.5 hours")],
)
def test_durations(seconds: float, text: str) -> None:
    assert duration(seconds) == text
