"""The classification benchmark, and what the same runs tell: learning curves, and detection of images of another kind.

`paper` is BALI with the paper's settings, `local` the same with local reparametrisation, `map` and `mc_dropout` are trained
as the paper says, and `ours` is `BALIClassifier()`. Tables have random splits, seeded by their number; images have one split
and a seed for each member.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.exceptions import ConvergenceWarning
from sklearn.metrics import roc_curve
from torch import Tensor

from bali.estimators import BALIClassifier
from bali.inference.health import HealthWarning
from bali.predictive import metrics
from bali.predictive.mixtures import ClassPredictive
from bali_benchmarks import datasets
from bali_benchmarks.reproduce.courses import Course, classifier_course
from bali_benchmarks.reproduce.job import Job, Line
from bali_benchmarks.reproduce.long_runs import Unfinished, train
from bali_benchmarks.reproduce.paper_settings import ADAM, CLASSIFICATION, PaperSetting
from bali_benchmarks.reproduce.pools import Pool, image_pool, split_of, splits_of, standard_pixels, table_pool

#: The images that a network trained on these has not seen.
OTHER = {"mnist": "fashion_mnist", "fashion_mnist": "mnist"}
#: Sets with learning curves in the paper.
CURVES = ("fashion_mnist", "mnist", "telescope", "spam")
#: Points of a learning curve, and what each is measured with. The paper takes 128 draws, all test and 10,000 training rows,
#: every ten epochs; those here are denser at the start, where curves change most.
N_CHECKS, QUICK_CHECKS, CHECK_SAMPLES, CHECK_ROWS = 30, 4, 128, 2000
#: Of the estimator where only a look is wanted.
QUICK_DEFAULTS: dict[str, Any] = {"max_iter": 40, "n_members": 2, "n_samples": 16, "hidden_layer_sizes": (32,)}
#: About the seconds of one core for a step of one member: tables, images.
STEP_SECONDS = {"paper": (0.045, 0.12), "local": (0.08, 0.22), "map": (0.023, 0.05), "mc_dropout": (0.03, 0.055)}


def setting_of(name: str, quick: bool) -> PaperSetting:
    return CLASSIFICATION[name].quick() if quick else CLASSIFICATION[name]


def every_job(quick: bool) -> Iterator[Job]:
    for name in CLASSIFICATION:
        setting = setting_of(name, quick)
        for method, seconds in STEP_SECONDS.items():
            if method != "local" or name in CURVES:
                cost = seconds[setting.scales_inputs] * setting.n_steps * setting.n_splits
                yield Job("classification", name, method, None, quick, 8 if quick else round(cost))
        for k in range(setting.n_splits):
            yield Job("classification", name, "ours", k, quick, 2 if quick else 600)


def jobs(quick: bool) -> list[Job]:
    return [job for job in every_job(quick) if job.method != "local"]


def convergence_jobs(quick: bool) -> list[Job]:
    """Learning curves are taken in the runs of the benchmark."""
    return [job for job in jobs(quick) if job.name in CURVES and job.method != "ours"]


def local_jobs(quick: bool) -> list[Job]:
    return [job for job in every_job(quick) if job.name in CURVES and job.method in ("paper", "local")]


def ood_jobs(quick: bool) -> list[Job]:
    return [job for job in jobs(quick) if job.name in OTHER]


def run(job: Job) -> list[Line]:
    data, setting = datasets.load(job.name), setting_of(job.name, job.quick).shortened(job.share)
    others = _other_images(job.name, setting) if job.name in OTHER else None
    if job.split is not None:
        return [default_scores(data, setting, job.split, others, quick=job.quick)]
    n_checks = QUICK_CHECKS if job.quick else N_CHECKS
    return paper_scores(data, setting, job.method, others, n_checks if job.name in CURVES else 0, keep_in=job.unfinished)


def pool_of(data: datasets.Dataset, setting: PaperSetting) -> Pool:
    n_classes = len(data.class_names)
    if data.image_shape is None:
        return table_pool(splits_of(data, setting, published=False), n_classes)
    return image_pool(split_of(data, setting, 0, published=True), setting.n_splits, n_classes)


def paper_scores(
    data: datasets.Dataset,
    setting: PaperSetting,
    method: str,
    others: NDArray[Any] | None,
    n_checks: int,
    *,
    seed: int = 0,
    keep_in: Path | None = None,
) -> list[Line]:
    """Test scores and learning curves of every member."""
    pool, adam = pool_of(data, setting), ADAM[data.name]
    settings = asdict(setting) | (asdict(adam) if method in ("map", "mc_dropout") else {})
    course = classifier_course(method, pool, setting, adam, seed=seed)
    curves, checks = Curves(pool), check_steps(setting.n_steps, n_checks)
    unfinished = None
    if keep_in is not None:
        what = {"method": method, "seed": seed, "shares_rows": pool.shares_rows, "checks": checks}
        unfinished = Unfinished(keep_in, settings | what)
    spent = train(course, setting.n_steps, curves, checks, unfinished)
    start = time.process_time()
    lines = []
    for k, (x, y) in enumerate(zip(pool.x_test, pool.y_test, strict=True)):
        inside = course.predict(k, x, setting.n_samples)
        line = scores(inside, y) | {"settings": settings, "seed": seed, "shares_rows": pool.shares_rows}
        if checks:
            line |= {"curve": curves.points[k], "curve_draws": CHECK_SAMPLES}
        if others is not None:
            outside = standard_pixels(others, split_of(data, setting, 0, published=True))
            line["ood"] = detection(inside, course.predict(k, outside, setting.n_samples))
        lines.append(line)
    seconds = round(spent + time.process_time() - start, 1)
    return [line | {"seconds": seconds} for line in lines]


def default_scores(
    data: datasets.Dataset, setting: PaperSetting, k: int, others: NDArray[Any] | None, *, quick: bool
) -> Line:
    """One split, or seed, by the estimator with its defaults; of the setting only the number of rows counts."""
    start = time.process_time()
    images = data.image_shape is not None
    split = split_of(data, setting, 0 if images else k, published=images)
    changed = QUICK_DEFAULTS if quick else {}
    with warnings.catch_warnings():
        for kind in (ConvergenceWarning, HealthWarning):  # its steps are in the line, and a set is taken as it is
            warnings.simplefilter("ignore", kind)
        model = BALIClassifier(random_state=k, **changed).fit(split.X_train, split.y_train)
    inside = model.pred_dist(split.X_test)
    line = scores(inside, torch.as_tensor(split.y_test)) | {"settings": changed, "steps": model.n_iter_, "seed": k}
    if others is not None:
        line["ood"] = detection(inside, model.pred_dist(others))
    return line | {"seconds": round(time.process_time() - start, 1)}


class Curves:
    """The log-likelihoods of some training and test rows of every member as training goes on."""

    def __init__(self, pool: Pool) -> None:
        self.pool = pool
        self.points: list[dict[str, list[float]]] = [
            {"steps": [], "seconds": [], "train": [], "test": []} for _ in range(pool.members)
        ]

    def note(self, course: Course, seconds: float) -> None:
        pool = self.pool
        for k, points in enumerate(self.points):
            rows = pool.rows[k, :CHECK_ROWS]
            x = torch.cat([pool.x[rows], pool.x_test[k][:CHECK_ROWS]])
            probabilities = course.predict(k, x, CHECK_SAMPLES).component_probabilities  # the same draws for both parts
            points["steps"].append(course.step)
            points["seconds"].append(round(seconds, 3))
            for part, own, y in (
                ("train", probabilities[:, : len(rows)], pool.y[rows]),
                ("test", probabilities[:, len(rows) :], pool.y_test[k][:CHECK_ROWS]),
            ):
                points[part].append(round(metrics.log_likelihood(ClassPredictive(own), y), 5))

    def noted(self) -> list[dict[str, list[float]]]:
        return self.points

    def go_on(self, noted: list[dict[str, list[float]]]) -> None:
        self.points = noted


def check_steps(n_steps: int, n_checks: int) -> list[int]:
    """Denser at the start, where curves change most; the last step is one of them."""
    return sorted({int(step) for step in np.geomspace(min(10, n_steps), n_steps, n_checks).round()})


def scores(predictive: ClassPredictive, y: Tensor) -> Line:
    found = {
        "accuracy": metrics.accuracy(predictive, y),
        "log_likelihood": metrics.log_likelihood(predictive, y),
        "ece": metrics.expected_calibration_error(predictive, y),
    }
    return found | ({"auc": metrics.auc(predictive, y)} if predictive.probabilities.shape[1] == 2 else {})


# --- images of another kind -------------------------------------------------------------------------------------


def _other_images(name: str, setting: PaperSetting) -> NDArray[Any]:
    """Test images of the other set, (n, D), pixels as they are."""
    return datasets.load(OTHER[name]).split(0).X_test[: setting.max_rows]


def detection(inside: ClassPredictive, outside: ClassPredictive) -> Line:
    """How well entropy and mutual information tell them apart, and the ROC curve by entropy as the paper draws it:
    images of the training set are the positives."""
    is_inside = np.repeat([1, 0], [inside.n_rows, outside.n_rows])
    certainty = -torch.cat([inside.entropy, outside.entropy]).double().numpy()
    false_positives, true_positives, _ = roc_curve(is_inside, certainty)
    grid = np.linspace(0.0, 1.0, 101)
    return {
        "entropy": asdict(metrics.out_of_distribution(inside, outside)),
        "mutual_information": asdict(metrics.out_of_distribution(inside, outside, "mutual_information")),
        "true_positives": np.interp(grid, false_positives, true_positives).round(4).tolist(),
    }
