"""Counts and durations as tasks: how they are noticed, what is refused, what is written, scored and recorded about them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from scipy import stats

from bali.predictive import metrics
from bali.predictive.durations import DurationPredictive
from bali.predictive.likelihoods import NegativeBinomial, Poisson, Weibull
from bali.tables.errors import TableError
from bali.tables.table_model import load_table_model
from bali.tables.table_scores import Scores, rootogram, survival_by_risk
from bali.tables.target_column import Target, learn_target
from bali.tables.writing import prediction_columns
from support.houses import run

RNG = np.random.default_rng(0)
VISITS = RNG.negative_binomial(1, 0.1, 300)
OFTEN = pd.Series(VISITS, name="visits", index=pd.RangeIndex(1, 301))
WEEKS, FOUND = pd.Series([1.5, 3.0, 8.0] * 20, name="weeks"), pd.Series([1, 0, 1] * 20, name="found")


def test_counts_are_noticed() -> None:
    target, reason = learn_target(OFTEN)
    assert target.task == "counts"
    assert "use --task regression" in reason
    assert learn_target(OFTEN, "regression")[0].task == "regression"
    for other in (OFTEN + 20, OFTEN + 0.5, OFTEN * 1000, OFTEN.max() - OFTEN):  # years, amounts, incomes, points
        assert learn_target(other)[0].task == "regression"


def test_durations() -> None:
    target, reason = learn_target(WEEKS, "auto", FOUND)
    assert (target.task, target.columns, target.event) == ("durations", ["weeks", "found"], "found")
    assert "over in 40 rows, by 'found'; not over yet in 20" in reason
    assert list(target.times) == sorted(target.times)
    values = target.values(WEEKS, FOUND.map({0: "False", 1: "true"}))
    np.testing.assert_array_equal(values, np.column_stack([WEEKS, FOUND]))


BAD: dict[str, tuple[Any, str]] = {
    "negative count": (lambda: learn_target(OFTEN - 1, "counts"), r"'visits' is '-1' in row \d+, but counts are 0, 1, 2"),
    "half a count": (lambda: learn_target(OFTEN / 2, "counts"), "counts are 0, 1, 2, …; use --task regression"),
    "no time": (lambda: learn_target(WEEKS * 0, "auto", FOUND), "'weeks' is '0.0' in row 0, but durations must be above 0"),
    "odd event": (lambda: learn_target(WEEKS, "auto", FOUND + 1), "'found' is '2' in row 0, but events must be 1 where"),
    "no event": (lambda: learn_target(WEEKS, "auto", FOUND * 0), "'found' is 0 in every row"),
}


@pytest.mark.parametrize(("learn", "message"), BAD.values(), ids=BAD.keys())
def test_what_cannot_be_is_named_with_its_row(learn: Any, message: str) -> None:
    with pytest.raises(TableError, match=message):
        learn()


def test_columns_of_counts() -> None:
    z = torch.log(torch.tensor([3.0, 2.0])).expand(4, 50, 2).contiguous()
    columns = prediction_columns(NegativeBinomial().predictive(z), Target("visits", "counts"), 0.9)
    assert list(columns) == [
        "mean", "median", "std", "lower", "upper", "probability_0", "epistemic_std", "aleatoric_std",
    ]  # fmt: skip
    law = stats.nbinom(2, 2 / 5)
    np.testing.assert_allclose(columns["probability_0"], law.pmf(0), rtol=1e-5)
    np.testing.assert_array_equal(columns["upper"], law.ppf(0.95))
    np.testing.assert_allclose(columns["std"], law.std(), rtol=1e-4)


def test_scores_of_counts_are_those_of_the_library() -> None:
    y = np.random.default_rng(0).poisson(4.0, 60).astype(float)
    z = torch.linspace(0.5, 2.0, 60)[None, :, None] + torch.tensor([0.0, 0.3])[:, None, None]
    predictive = Poisson().predictive(z)
    scores = Scores(Target("visits", "counts"))
    for part in (slice(0, 25), slice(25, 60)):
        scores.add(predictive.rows(part), y[part])
    found = scores.metrics()
    assert found["crps"] == pytest.approx(metrics.crps(predictive, y), rel=1e-6)
    assert found["interval_score"] == pytest.approx(metrics.interval_score(predictive, y, 0.9), rel=1e-6)
    assert found["coverage_90"] == metrics.interval_coverage(predictive, y, 0.9)
    losses = [metrics.pinball_loss(predictive, y, level) for level in (0.05, 0.5, 0.95)]
    assert found["pinball"] == pytest.approx(np.mean(losses), rel=1e-6)


def test_columns_and_scores_of_durations() -> None:
    z = torch.zeros(2, 60, 2)
    z[:, :, 0] = torch.linspace(0.0, 2.0, 60)
    predictive = Weibull().predictive(z)
    assert isinstance(predictive, DurationPredictive)
    target, _ = learn_target(WEEKS, "auto", FOUND)
    columns = prediction_columns(predictive, target, 0.9, [1.0, 4.0])
    assert list(columns) == ["median", "mean", "lower", "upper", "survival_1", "survival_4"]
    scale = np.exp(np.linspace(0.0, 2.0, 60))
    np.testing.assert_allclose(columns["survival_4"], np.exp(-4 / scale), rtol=1e-4)
    np.testing.assert_allclose(columns["mean"], scale, rtol=1e-4)
    scores = Scores(target)
    y = target.values(WEEKS, FOUND)
    for part in (slice(0, 25), slice(25, 60)):
        scores.add(predictive.rows(part), y[part])
    found = scores.metrics()
    assert list(found) == ["concordance", "brier_over_time", "log_likelihood", "coverage_90", "pit_distance"]
    assert 0.0 < found["brier_over_time"] < 1.0
    groups = survival_by_risk(predictive, y)["groups"]
    assert [group["rows"] for group in groups] == [20, 20, 20]
    assert groups[0]["predicted"][20] < groups[2]["predicted"][20]


def test_rootogram_adds_up() -> None:
    z = torch.log(torch.tensor([9.0, 1.0])).expand(3, 300, 2).contiguous()
    found = rootogram(NegativeBinomial().predictive(z), VISITS.astype(float))
    assert sum(found["observed"]) == 300
    last = found["at"][-1] + found["at"][1] - 1
    assert sum(found["expected"]) == pytest.approx(300 * stats.nbinom(1, 0.1).cdf(last), rel=1e-4)


USAGE = {
    ("--time", "weeks"): "--event",
    ("--event", "found"): "--event",
    ("--time", "weeks", "--event", "found", "--target", "x"): "--time",
    (): "--target",
}


@pytest.mark.parametrize("arguments", USAGE)
def test_options_that_do_not_go_together(arguments: tuple[str, ...], tmp_path: Path) -> None:
    (tmp_path / "jobs.csv").write_text("x,weeks,found\n1,2,1\n")
    result = run("fit", tmp_path / "jobs.csv", *arguments)
    assert result.exit_code == 2
    assert USAGE[arguments] in result.output


def test_fit_predict_evaluate_counts(tmp_path: Path) -> None:
    x = RNG.normal(size=VISITS.size)
    table = pd.DataFrame({"x": x, "visits": VISITS})
    file, model = tmp_path / "visits.csv", tmp_path / "model"
    table.to_csv(file, index=False)
    quick = ("--max-iter", 10, "--members", 2, "--jobs", 1, "--time-limit", 60, "--holdout", 0.4, "--out", model)
    result = run("fit", file, "--target", "visits", *quick)
    assert result.exit_code == 0, result.output
    assert "task: counts" in result.stdout
    record = json.loads((model / "metrics.json").read_text())
    assert record["task"] == "counts"
    assert {"d2", "crps", "interval_score", "pinball", "pit_distance"} <= set(record["metrics"])
    assert "Interval score" in (model / "report.html").read_text()
    out = tmp_path / "predicted.csv"
    assert run("predict", model, file, "--out", out).exit_code == 0
    found = pd.read_csv(out)
    assert (found["lower"] == found["lower"].round()).all()
    assert found["probability_0"].between(0.0, 1.0).all()
    scores = json.loads(run("evaluate", model, file, "--json", "--quiet").stdout)["metrics"]
    assert scores["interval_score"] > 0.0
    table.assign(visits=VISITS - 50).to_csv(file, index=False)
    assert "counts are 0, 1, 2" in run("evaluate", model, file).output


def test_fit_predict_evaluate_durations(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    x, censored = rng.normal(size=60), rng.uniform(1, 9, 60)
    t = 3 * np.exp(x) * rng.weibull(2.0, 60)
    jobs = pd.DataFrame({"x": x, "weeks": np.minimum(t, censored), "found": (t < censored).astype(int)})
    file, model = tmp_path / "jobs.csv", tmp_path / "model"
    jobs.to_csv(file, index=False)
    quick = ("--max-iter", 10, "--members", 2, "--jobs", 1, "--time-limit", 60, "--holdout", 0.4, "--out", model)
    result = run("fit", file, "--time", "weeks", "--event", "found", *quick)
    assert result.exit_code == 0, result.output
    record = json.loads((model / "metrics.json").read_text())
    assert record["task"] == "durations"
    assert {"concordance", "log_likelihood"} <= set(record["metrics"])
    page = (model / "report.html").read_text()
    assert "Kaplan and Meier" in page
    assert "What the columns do" in page
    out = tmp_path / "predicted.csv"
    result = run("predict", model, file, "--out", out, "--at", 2, "--at", 5)
    assert result.exit_code == 0, result.output
    columns = pd.read_csv(out)
    assert list(columns) == ["row", "median", "mean", "lower", "upper", "survival_2", "survival_5"]
    assert (columns["survival_2"] >= columns["survival_5"]).all()
    result = run("evaluate", model, file, "--json", "--quiet")
    assert json.loads(result.stdout)["n_rows"] == 60
    trained = load_table_model(model)
    structured = np.array(list(zip(jobs["found"] == 1, jobs["weeks"], strict=True)), dtype=[("e", bool), ("t", float)])
    features = trained.encoder.transform(jobs)
    assert 0.0 <= trained.estimator.score(features, structured) <= 1.0
    np.testing.assert_allclose(trained.estimator.predict_survival(features, [2, 5])[:, 0], columns["survival_2"], rtol=1e-4)
    np.testing.assert_allclose(trained.estimator.predict_median(features), columns["median"], rtol=1e-4)
    bad = jobs.assign(found=2)
    bad.to_csv(file, index=False)
    assert "events must be 1" in run("evaluate", model, file).output
