"""The regression benchmark: BALI with the paper's settings, and with the defaults of this package.

`paper` are the paper's settings on the splits that were published with the sets, on which all other methods were run;
`paper-random` the same on seeded random ones, as the paper describes its own; `ours` is `BALIRegressor()` on the published
ones.
"""

from __future__ import annotations

import time
import warnings
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from sklearn.exceptions import ConvergenceWarning

from bali.estimators import BALIRegressor
from bali.inference.health import HealthWarning
from bali.inference.layerwise import LayerwiseInference
from bali.predictive import metrics
from bali.predictive.mixtures import RegressionPredictive
from bali_benchmarks import datasets
from bali_benchmarks.reproduce.courses import BaliCourse
from bali_benchmarks.reproduce.job import Job, Line
from bali_benchmarks.reproduce.long_runs import NoWatch, Unfinished, train
from bali_benchmarks.reproduce.paper_settings import REGRESSION, PaperSetting
from bali_benchmarks.reproduce.pools import Pool, split_of, splits_of, table_pool
from bali_benchmarks.some_members import take_members

METHODS = ("paper", "paper-random", "ours")
#: Of the estimator where only a look is wanted.
QUICK_DEFAULTS: dict[str, Any] = {"max_iter": 40, "n_members": 2, "n_samples": 32, "hidden_layer_sizes": (32,)}
#: About the seconds of one core for any step, and for a thousand rows of 20 members with 50 units beside.
STEP_SECONDS, ROW_SECONDS = 0.007, 0.014
#: About those of a fit of the estimator: the longest are started first, so that no process waits long at the end.
FIT_SECONDS = {"yacht": 30, "concrete": 65, "energy": 55, "redwine": 22, "kin8nm": 27, "powerplant": 36, "protein": 110}


def setting_of(job: Job) -> PaperSetting:
    return REGRESSION[job.name].quick() if job.quick else REGRESSION[job.name].shortened(job.share)


def jobs(quick: bool) -> list[Job]:
    """One for all splits where they are trained together; one for each split of the estimator."""
    found = []
    for name, setting in REGRESSION.items():
        chosen = setting.quick() if quick else setting
        rows = min(chosen.batch_size or 1000, chosen.max_rows or 1000)
        size = chosen.n_splits / 20 * rows / 1000 * chosen.hidden[0] / 50
        cost = chosen.n_steps * (STEP_SECONDS + ROW_SECONDS * size)
        found += [Job("regression", name, method, None, quick, max(1, round(cost))) for method in ("paper", "paper-random")]
        found += [
            Job("regression", name, "ours", k, quick, 1 if quick else FIT_SECONDS[name]) for k in range(chosen.n_splits)
        ]
    return found


def run(job: Job) -> list[Line]:
    data, setting = datasets.load(job.name), setting_of(job)
    if job.split is not None:
        return [default_scores(data, setting, job.split, quick=job.quick)]
    return paper_scores(data, setting, published=job.method == "paper", keep_in=job.unfinished)


def paper_scores(
    data: datasets.Dataset, setting: PaperSetting, *, published: bool, seed: int = 0, keep_in: Path | None = None
) -> list[Line]:
    """Test scores of every split in the units of the targets."""
    pool = table_pool(splits_of(data, setting, published=published), 0)
    course = BaliCourse(pool, setting, seed=seed)
    unfinished = None
    if keep_in is not None:
        unfinished = Unfinished(keep_in, asdict(setting) | {"published": published, "seed": seed})
    spent = train(course, setting.n_steps, NoWatch(), unfinished=unfinished)
    start = time.process_time()
    inference = course.inference
    lines = [scores(member_predictive(inference, pool, k, setting.n_samples), y) for k, y in enumerate(pool.y_test)]
    seconds = round(spent + time.process_time() - start, 1)
    return [line | {"settings": asdict(setting), "seed": seed, "seconds": seconds} for line in lines]


def member_predictive(inference: LayerwiseInference, pool: Pool, k: int, n_samples: int) -> RegressionPredictive:
    """Of member k at its own test rows, in the units of the targets."""
    standard = take_members(inference, [k]).predict(pool.x_test[k], n_samples)
    assert isinstance(standard, RegressionPredictive)
    scale, mean = (torch.tensor([value[k]], dtype=torch.float64) for value in (pool.scale, pool.mean))
    return RegressionPredictive(standard.means.double(), standard.noise.double()).affine(scale, mean)


def default_scores(data: datasets.Dataset, setting: PaperSetting, k: int, *, quick: bool) -> Line:
    """One published split by the estimator with its defaults; of the setting only the number of rows counts."""
    start = time.perf_counter()
    split = split_of(data, setting, k, published=True)
    changed = QUICK_DEFAULTS if quick else {}
    with warnings.catch_warnings():
        for kind in (ConvergenceWarning, HealthWarning):  # its steps are in the line, and a set is taken as it is
            warnings.simplefilter("ignore", kind)
        model = BALIRegressor(random_state=k, **changed).fit(split.X_train, split.y_train)
    line = scores(model.pred_dist(split.X_test), torch.as_tensor(split.y_test))
    seconds = round(time.perf_counter() - start, 1)
    return line | {"settings": changed, "steps": model.n_iter_, "seed": k, "seconds": seconds}


def scores(predictive: RegressionPredictive, y: torch.Tensor) -> Line:
    return {
        "rmse": metrics.rmse(predictive, y),
        "log_likelihood": metrics.log_likelihood(predictive, y),
        "coverage_90": metrics.interval_coverage(predictive, y, 0.9),
    }
