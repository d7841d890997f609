"""The synthetic experiments in small: what the paper says about them holds, and pictures and page are made."""

from __future__ import annotations

import io
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from matplotlib.image import imread
from rich.console import Console

from bali.predictive.mixtures import RegressionPredictive
from bali_benchmarks import demo
from bali_benchmarks.lines import read_lines
from bali_benchmarks.reproduce import experiments, synthetic, synthetic_page
from bali_benchmarks.reproduce.job import Job, Line

SETS = ["sines-trend", "two-moons"]
NAMES = ["synthetic", "bbb-synthetic", "local-reparam"]


@pytest.fixture(scope="module")
def quick(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two of the three sets, without the parts of local reparametrisation that need data."""
    folder = tmp_path_factory.mktemp("reproduce")
    two = [setting for setting in demo.settings() if setting.data.name in SETS]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(demo, "settings", lambda: two)
        patch.setitem(experiments.EXPERIMENTS, "local-reparam", synthetic.local_jobs)
        experiments.run(NAMES, folder, folder / "results.md", quick=True, console=Console(file=io.StringIO()))
    return folder


def lines(folder: Path, name: str) -> list[Line]:
    return read_lines(folder / f"reproduce-{name}.jsonl")


def test_bali_fits_and_knows_less_away_from_the_data(quick: Path) -> None:
    rows = {(row["set"], row["method"]): row for row in lines(quick, "synthetic")}
    assert sorted(rows) == sorted((name, method) for name in SETS for method in ("paper", "ours"))
    assert rows["sines-trend", "paper"]["fit_train"] < 0.06
    assert rows["two-moons", "paper"]["fit_train"] > 0.95
    assert rows["sines-trend", "ours"]["fit_train"] < 0.25  # in 60 steps
    assert rows["two-moons", "ours"]["fit_train"] > 0.9
    assert all(row["std_outside"] > 1.2 * row["std_inside"] for row in rows.values())


def test_bayes_by_backprop_underfits_with_the_whole_divergence(quick: Path) -> None:
    rows = {(row["set"], row["kl_weight"]): row for row in lines(quick, "bbb-synthetic")}
    assert sorted(rows) == sorted((name, weight) for name in SETS for weight in (1.0, 0.1, 0.01))
    bali = {row["set"]: row for row in lines(quick, "synthetic") if row["method"] == "paper"}
    assert rows["sines-trend", 1.0]["fit_train"] > 2 * bali["sines-trend"]["fit_train"]
    assert rows["sines-trend", 1.0]["fit_train"] > rows["sines-trend", 0.01]["fit_train"]
    assert rows["two-moons", 1.0]["fit_train"] < rows["two-moons", 0.01]["fit_train"]


def test_local_reparametrisation_learns_too(quick: Path) -> None:
    rows = lines(quick, "local-reparam")
    assert sorted((row["set"], row["variant"]) for row in rows) == sorted((s, v) for s in SETS for v in synthetic.REPARAMS)
    for row in rows:
        assert row["steps"] == list(range(25, 151, 25))
        assert len(row["train"]) == len(row["test"]) == len(row["steps"])
        assert row["train"][-1] > (-0.2 if row["set"] == "two-moons" else 0.4)
        assert row["log_likelihood_test"] == row["test"][-1]
    curves = {(row["set"], row["variant"]): row["train"] for row in rows}
    assert all(curves[name, "BALI-W"] != curves[name, "BALI-L"] for name in SETS)


def test_pictures_and_page_are_made(quick: Path) -> None:
    page = (quick / "results.md").read_text()
    for kind in ("synthetic", "defaults", "bbb", "local"):
        for name in SETS:
            picture = f"images/{synthetic.image_name(kind, name)}"
            assert f"]({picture})" in page
            pixels = imread(quick / picture)
            assert min(pixels.shape[:2]) >= 350
            assert len(np.unique(pixels[::5, ::5, :3].reshape(-1, 3), axis=0)) > 10
    for row in lines(quick, "bbb-synthetic"):
        assert f"| {row['set']} | {row['kl_weight']:g} | {row['fit_train']:.3f} |" in page
    assert page.index("## Synthetic sets") < page.index("## Bayes by backprop") < page.index("## Local reparametrisation")


def test_each_weight_on_the_divergence_has_its_own_network() -> None:
    """Nothing is shared between members but the draws: the second of two is the first of another pair."""
    setting = demo.settings()[0].quick()
    short = replace(setting, n_steps=5, width=8, n_samples=4)
    predict = synthetic.fit_bbb(short, (1.0, 0.01))
    x = torch.linspace(-1, 1, 7)[:, None]
    one, two = predict(0)(x), predict(1)(x)
    assert isinstance(one, RegressionPredictive)
    assert isinstance(two, RegressionPredictive)
    assert one.means.shape == two.means.shape == (4, 7, 1)
    assert not torch.allclose(one.means, two.means)
    again = synthetic.fit_bbb(short, (1.0, 0.01))(0)(x)
    assert isinstance(again, RegressionPredictive)
    torch.testing.assert_close(again.means, one.means)


def test_verdicts_compare_with_bali() -> None:
    def line(experiment: str, fit: float, outside: float, kl_weight: float = 1.0) -> Line:
        scores = {"fit_train": fit, "fit_test": fit, "log_likelihood_test": 0.0, "calibration_test": 0.9}
        spread = {"std_inside": 0.1, "std_outside": outside, "task": "regression", "settings": {"width": 4}, "n_steps": 1}
        return {"set": "sinc", "kl_weight": kl_weight, "experiment": experiment, "method": "paper"} | scores | spread

    rows = {
        "synthetic": [line("synthetic", 0.1, 1.0)],
        "bbb-synthetic": [line("b", 0.3, 0.9, 1.0), line("b", 0.1, 0.2, 0.01)],
    }
    said = synthetic_page.bayes_by_backprop(rows)
    assert any(text.startswith("| sinc | 1 |") and text.endswith("| yes | no |") for text in said)
    assert any(text.startswith("| sinc | 0.01 |") and text.endswith("| no | yes |") for text in said)
    alone = synthetic_page.bayes_by_backprop({"bbb-synthetic": rows["bbb-synthetic"]})
    assert any(text.endswith("| – | – |") for text in alone)
    assert any(text.endswith("| 10.0 |") for text in synthetic_page.synthetic(rows))


def test_half_way_is_the_first_step_above_the_middle() -> None:
    assert synthetic_page.half_way([1, 2, 3, 4], [-4.0, -3.0, -1.9, 0.0]) == 3


def test_full_runs_have_the_steps_that_give_the_papers_picture() -> None:
    full = synthetic.setting_of(Job("synthetic", "sinc", "BALI"))
    assert (full.n_steps, full.width, full.n_samples, full.init_std, full.prior_std) == (1500, 256, 256, 3.0, 80.0)
