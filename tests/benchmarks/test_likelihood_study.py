"""Linear models beside the estimators, and the study that runs them all."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy.optimize import minimize
from sklearn.linear_model import PoissonRegressor

from bali.predictive.likelihoods import Poisson, Weibull, durations
from bali_benchmarks.likelihoods import boosted_counts, likelihood_runs
from bali_benchmarks.likelihoods.likelihood_runs import SETS, Job, jobs, run
from bali_benchmarks.likelihoods.likelihoods_page import to_markdown
from bali_benchmarks.likelihoods.linear_models import Cox, LinearModel
from bali_benchmarks.lines import append_line, read_lines

RNG = np.random.default_rng(0)
X = RNG.normal(size=(400, 2))


def test_a_linear_poisson_model_is_scikit_learns() -> None:
    y = RNG.poisson(np.exp(0.3 + X @ [0.5, -0.4])).astype(float)
    ours = LinearModel(Poisson()).fit(X, torch.tensor(y)).predict(X).mean[:, 0].double().numpy()
    theirs = PoissonRegressor(alpha=0.0).fit(X, y).predict(X)
    np.testing.assert_allclose(ours, theirs, rtol=0.01)  # the penalty that keeps the optimum finite


def waiting_times() -> tuple[Any, Any]:
    time = 5.0 * np.exp(X @ [0.6, 0.0]) * RNG.weibull(1.5, size=len(X))
    over = time < 10.0
    return np.minimum(time, 10.0), over


def test_cox_maximises_the_partial_likelihood() -> None:
    """Against a loop over events; risks of events that share no time."""
    time, over = waiting_times()
    Z = (X - X.mean(0)) / X.std(0)

    def loss(w: Any) -> float:
        risk = Z @ w
        return -float(sum(risk[i] - np.log(np.exp(risk[time >= time[i]]).sum()) for i in np.flatnonzero(over))) / len(X)

    expected = minimize(loss, np.zeros(2)).x
    found = Cox().fit(X, time, over)
    np.testing.assert_allclose(found.weights, expected, atol=2e-3)
    survival = found.survival(X[:5], np.array([0.0, 2.0, 5.0, 9.0]))
    assert (np.diff(survival, axis=1) <= 0.0).all()
    np.testing.assert_allclose(survival[:, 0], 1.0, atol=0.05)
    # A higher risk is a lower curve.
    order = np.argsort(found.risk(X[:5]))
    assert (np.diff(survival[order, 2]) <= 0.0).all()


def test_a_linear_weibull_model_finds_slope_and_shape() -> None:
    time, over = waiting_times()
    model = LinearModel(Weibull()).fit(X, durations(time, over))
    slope = model.parameters[1:3].numpy() / X.std(0)
    np.testing.assert_allclose(slope, [0.6, 0.0], atol=0.12)


def test_a_run_goes_on_and_makes_a_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Job] = []

    def fake(job: Job) -> dict[str, float]:
        asked.append(job)
        return {"log_likelihood": float(job.split)}

    monkeypatch.setitem(likelihood_runs.SETS, "noise by a column", (("BALI",), 3, fake))
    out = tmp_path / "lines.jsonl"
    run(out, ["noise by a column"])
    assert len(asked) == len(read_lines(out)) == 3
    assert len(run(out, ["noise by a column"])) == len(asked) == 3
    assert "| BALI | 3 | 1.000 ± 0.577 |" in to_markdown(read_lines(out))
    append_line(out, {"set": "airfoil", "method": "BALI", "split": 0, "seconds": 1.0, "rmse": 0.1})
    assert len(run(out, ["noise by a column"], again=["BALI"])) == 4
    assert len(asked) == 6
    with pytest.raises(ValueError, match="there is no method 'moon'; there are BALI"):
        run(out, ["noise by a column"], again=["moon"])


def test_a_set_that_is_not_there_is_named_with_those_that_are() -> None:
    with pytest.raises(ValueError, match=r"there is no set 'moon'; there are unemployment, noise by a column"):
        jobs(["moon"])


def test_methods_that_are_not_installed_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(boosted_counts, "is_installed", lambda: False)
    assert boosted_counts.NAME in SETS["doctor visits"][0]
    assert boosted_counts.NAME not in {job.method for job in jobs()}
    monkeypatch.setattr(boosted_counts, "is_installed", lambda: True)
    assert boosted_counts.NAME in {job.method for job in jobs()}


def test_boosted_trees_learn_counts() -> None:
    if not boosted_counts.is_installed():
        pytest.skip("pip install 'bali-benchmarks[peers]' has it")
    rate = np.exp(1.0 + np.sign(X[:, 0]))
    y = torch.tensor(RNG.poisson(rate).astype(float))
    found = boosted_counts.BoostedCounts().fit(X, y).predict(X).mean[:, 0].double().numpy()
    assert np.corrcoef(found, rate)[0, 1] > 0.9
