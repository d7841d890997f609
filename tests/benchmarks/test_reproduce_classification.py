"""The classification benchmark in small, on stand-ins: scores, learning curves, images of another kind, and the page."""

from __future__ import annotations

import io
from dataclasses import replace
from pathlib import Path
from unittest import mock

import numpy as np
import pytest
import torch
from matplotlib.image import imread
from rich.console import Console

from bali.predictive import metrics
from bali.predictive.mixtures import ClassPredictive
from bali_benchmarks import datasets
from bali_benchmarks.lines import read_lines
from bali_benchmarks.reproduce import classification, classification_page, experiments, paper_settings
from bali_benchmarks.reproduce.courses import classifier_course
from bali_benchmarks.reproduce.job import Line
from bali_benchmarks.reproduce.long_runs import train
from bali_benchmarks.reproduce.pools import standard_pixels
from support.stand_ins import images, table

METHODS = ["paper", "local", "map", "mc_dropout"]


def stand_in(name: str) -> datasets.Dataset:
    return images(name) if name in classification.OTHER else table(name)


@pytest.fixture(scope="module")
def quick(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One table and one kind of images, all methods."""
    folder = tmp_path_factory.mktemp("classification")
    small = {
        name: replace(paper_settings.CLASSIFICATION[name], batch_size=100, hidden=(16, 16)) for name in ("spam", "mnist")
    }
    with mock.patch.dict(paper_settings.CLASSIFICATION, small, clear=True), pytest.MonkeyPatch.context() as patch:
        patch.setattr(datasets, "load", stand_in)
        patch.setitem(experiments.EXPERIMENTS, "local-reparam", classification.local_jobs)
        names = ["classification", "convergence", "ood", "local-reparam"]
        experiments.run(names, folder, folder / "results.md", quick=True, console=Console(file=io.StringIO()))
    return folder


def lines(folder: Path) -> list[Line]:
    return read_lines(folder / "reproduce-classification.jsonl")


def test_runs_are_shared_by_the_experiments(quick: Path) -> None:
    found = [(row["set"], row["method"], row["split"]) for row in lines(quick)]
    assert sorted(found) == sorted((s, m, k) for s in ("spam", "mnist") for m in [*METHODS, "ours"] for k in range(2))


def test_every_method_learns(quick: Path) -> None:
    for row in lines(quick):
        if row["set"] == "spam":
            assert row["accuracy"] > 0.75
            assert row["log_likelihood"] > -0.62
            assert 0.75 < row["auc"] < 1.0
        else:
            assert row["accuracy"] > 0.9
            assert "auc" not in row
        assert 0.0 <= row["ece"] < 0.4


def test_curves_end_with_the_training_and_rise(quick: Path) -> None:
    for row in lines(quick):
        if row["method"] == "ours":
            assert "curve" not in row
            continue
        curve = row["curve"]
        assert curve["steps"][0] == 10
        assert curve["steps"][-1] == row["settings"]["n_steps"]
        assert len(curve["train"]) == len(curve["test"]) == len(curve["steps"]) == len(curve["seconds"])
        assert np.all(np.diff(curve["seconds"]) >= 0)
        assert 0 < curve["seconds"][-1] <= row["seconds"] + 0.05  # which is rounded
        assert max(curve["test"]) > (-0.62 if row["set"] == "spam" else -0.7)


def test_other_images_are_detected_by_their_entropy(quick: Path) -> None:
    for row in lines(quick):
        assert ("ood" in row) == (row["set"] == "mnist")
        if "ood" in row:
            curve = row["ood"]["true_positives"]
            assert len(curve) == 101
            assert np.all(np.diff(curve) >= 0)
            # The area under the drawn curve is the area that is reported.
            assert np.trapezoid(curve, dx=0.01) == pytest.approx(row["ood"]["entropy"]["auroc"], abs=0.02)
            assert row["ood"]["entropy"]["auroc"] > 0.6


def test_page_has_all_sections_and_pictures(quick: Path) -> None:
    page = (quick / "results.md").read_text()
    for title in ("Classification", "Convergence", "Local reparametrisation in", "Images of another kind"):
        assert f"## {title}" in page
    for picture in ("convergence-spam", "convergence-mnist", "local-mnist", "ood-mnist"):
        path = f"images/reproduce-{picture}.png"
        assert f"]({path})" in page
        assert len(np.unique(imread(quick / path)[..., :3].reshape(-1, 3), axis=0)) > 10
    assert "| mnist | 0.986 ± 0.000 |" in page
    ours = [row["ood"] for row in lines(quick) if "ood" in row and row["method"] == "ours"]
    means = [
        np.mean([ood[score][key] for ood in ours])
        for key in ("aupr", "fpr95")
        for score in ("entropy", "mutual_information")
    ]
    section = page[page.index("precision by entropy") :].partition("\n\n")[0]
    [row] = [row for row in section.split("\n") if row.startswith("| mnist | BALI, defaults | ") and row.count("|") == 7]
    assert [float(cell.split("±")[0]) for cell in row.split("|")[3:7]] == pytest.approx(means, abs=5e-4)


@pytest.mark.parametrize("method", METHODS)
def test_members_are_trained_on_their_own_split(method: str) -> None:
    """The prediction of a member is good on its own test rows, and differs from the other member's."""
    setting = replace(paper_settings.CLASSIFICATION["spam"].quick(), n_steps=30, hidden=(8,))
    pool = classification.pool_of(table(), setting)
    checks, curves = classification.check_steps(30, 3), classification.Curves(pool)
    course = classifier_course(method, pool, setting, paper_settings.ADAM["spam"])
    train(course, setting.n_steps, curves, checks)
    assert [points["steps"] for points in curves.points] == [checks] * 2 == [[10, 17, 30]] * 2
    one, two = (course.predict(k, pool.x_test[0], 16) for k in range(2))
    assert isinstance(one, ClassPredictive)
    assert not torch.allclose(one.probabilities, two.probabilities)
    assert one.component_probabilities.shape[0] == (1 if method == "map" else 16)
    if method in ("paper", "local"):  # the others have small steps
        assert metrics.accuracy(one, pool.y_test[0]) > 0.7


def test_arrival_is_where_a_curve_is_as_good_as_the_worst_ever_gets() -> None:
    curves: dict[str, dict[str, list[float]]] = {
        "paper": {"steps": [1, 2, 3], "seconds": [3.0, 6.0, 9.0], "test": [-1.0, -0.2, -0.3]},
        "map": {"steps": [1, 2, 3], "seconds": [1.0, 2.0, 3.0], "test": [-2.0, -1.0, -0.4]},
    }
    assert classification_page.arrival(curves) == {"paper": 2, "map": 3}
    assert classification_page.arrival(curves, "seconds") == {"paper": 6.0, "map": 3.0}


def test_jobs_are_those_of_the_paper() -> None:
    every = classification.jobs(quick=False)
    assert sum(job.split is None for job in every) == 5 * 3
    assert sum(job.method == "ours" for job in every) == 3 * 5 + 2 * 3
    assert {job.name for job in classification.convergence_jobs(False)} == set(classification.CURVES)
    assert {job.method for job in classification.local_jobs(False)} == {"paper", "local"}
    assert {job.name for job in classification.ood_jobs(False)} == set(classification.OTHER)
    keys = {job.key for job in every}
    assert {job.key for job in classification.convergence_jobs(False) + classification.ood_jobs(False)} <= keys


def test_pixels_are_scaled_and_table_columns_are_not() -> None:
    sizes = [784, 256, 256, 10]
    assert paper_settings.CLASSIFICATION["mnist"].unit_variances(sizes) == {"0": 1 / 785, "2": 1 / 257, "4": 1 / 257}
    assert paper_settings.CLASSIFICATION["spam"].unit_variances([57, 256, 256, 2])["0"] == 1.0


def test_pixels_share_the_scale_of_the_training_images_also_those_of_another_set() -> None:
    split = images("mnist").split(0)
    pool = classification.pool_of(images("mnist"), paper_settings.CLASSIFICATION["mnist"])
    every = split.X_train.astype(float)
    for pixels, found in ((split.X_train, pool.x), (split.X_test, pool.x_test[0])):
        np.testing.assert_allclose(found, (pixels - every.mean()) / every.std(), rtol=1e-4, atol=1e-5)
    others = images("fashion_mnist").split(0).X_test
    np.testing.assert_allclose(standard_pixels(others, split), (others - every.mean()) / every.std(), rtol=1e-4, atol=1e-5)


def test_defaults_are_judged_beside_the_papers_bali() -> None:
    scores = {"accuracy": 0.951, "ece": 0.019, "auc": 0.987, "log_likelihood": -0.14}
    common = {"experiment": "classification", "set": "spam", "method": "ours", "share": 1.0, "seconds": 1.0, "quick": False}
    rows = [common | {"split": k, "seed": k} | {m: v + (-1) ** k * 1e-4 for m, v in scores.items()} for k in range(4)]
    page = "\n".join(classification_page.benchmark({"classification": rows}))
    assert "| 0.951 ± 0.000 | better by 2.4 | – |" in page  # accuracy
    assert "| 0.019 ± 0.000 | better by 3.3 | – |" in page  # calibration error
    assert "| -0.140 ± 0.000 | – | – |" in page  # the paper has no log-likelihoods


def test_defaults_are_compared_with_bali_only_where_that_has_all_steps() -> None:
    common = {"experiment": "classification", "set": "spam", "seconds": 1.0, "quick": False}
    ours, short, full, dropout = (
        [common | {"method": method, "share": share, "split": k, "accuracy": accuracy} for k in range(3)]
        for method, share, accuracy in (
            ("ours", 1.0, 0.95),
            ("paper", 0.05, 0.92),
            ("paper", 1.0, 0.94),
            ("mc_dropout", 0.05, 0.90),
        )
    )

    def ends(rows: list[Line]) -> str:
        (line,) = (
            s for s in classification_page.benchmark({"classification": rows}) if s.startswith("| spam") and "0.95" in s
        )
        return line.rsplit("|", 3)[1] + line.rsplit("|", 3)[2]

    page = "\n".join(classification_page.benchmark({"classification": [*ours, *short]}))
    assert "| 0.920 ± 0.000 | not known: 5 % of the steps |" in page
    assert ends([*ours, *short, *dropout]).split() == ["0.020", "±", "0.000", "–"]
    assert ends([*ours, *short, *full, *dropout]).split() == ["0.020", "±", "0.000", "0.010", "±", "0.000"]
    assert ends([*ours, *full, *dropout]).split() == ["–", "0.010", "±", "0.000"]
