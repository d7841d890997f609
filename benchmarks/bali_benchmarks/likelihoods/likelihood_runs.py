"""Jobs of the study: a set, a method and a split, one line of results each."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from rich.progress import track
from scipy import stats
from sklearn.model_selection import train_test_split

from bali import BALIRegressor
from bali.predictive import metrics
from bali.predictive.durations import concordance_of, integrated_brier_of
from bali.predictive.likelihoods import Weibull, durations
from bali.predictive.mixtures import RegressionPredictive
from bali_benchmarks.datasets.storage import data_folder
from bali_benchmarks.likelihoods import boosted_counts
from bali_benchmarks.likelihoods.linear_models import COUNT_MODELS, Cox, LinearModel
from bali_benchmarks.lines import append_line, read_lines, write_lines

Array = NDArray[Any]
N_SPLITS, N_CONSTANT = 5, 20


@dataclass(frozen=True)
class Job:
    set: str
    method: str
    split: int


def jobs(sets: Collection[str] = ()) -> list[Job]:
    """Cheap ones first; those of these sets, or all. A method whose package is not installed is left out."""
    unknown = [name for name in sets if name not in SETS]
    if unknown:
        raise ValueError(f"there is no set {unknown[0]!r}; there are {', '.join(SETS)}")
    wanted = {name: SETS[name] for name in SETS if not sets or name in sets}
    every = [
        Job(name, method, split) for name, (methods, n, _) in wanted.items() for split in range(n) for method in methods
    ]
    return [job for job in every if job.method != boosted_counts.NAME or boosted_counts.is_installed()]


def run(out: Path, sets: Collection[str] = (), again: Collection[str] = ()) -> list[dict[str, Any]]:
    """Those that are not in the file yet. What methods of `again` have there, of these sets, is thrown away first."""
    methods = {job.method for job in jobs(sets)}
    unknown = [name for name in again if name not in methods]
    if unknown:
        raise ValueError(f"there is no method {unknown[0]!r}; there are {', '.join(sorted(methods))}")
    rows = read_lines(out)
    if again:
        rows = [row for row in rows if row["method"] not in again or (sets and row["set"] not in sets)]
        write_lines(out, rows)
    done = {(row["set"], row["method"], row["split"]) for row in rows}
    left = [job for job in jobs(sets) if (job.set, job.method, job.split) not in done]
    for job in track(left, description="likelihoods"):
        started = time.perf_counter()
        scores = SETS[job.set][2](job)
        line = {"set": job.set, "method": job.method, "split": job.split, "seconds": round(time.perf_counter() - started, 1)}
        rows.append(append_line(out, line | scores))
    return rows


# --- tables of one law ------------------------------------------------------------------------------------------


def _noise_by_column(job: Job) -> dict[str, float]:
    """2,000 × 4; the standard deviation is exp(−2.007 + .678 x₁) at a mean of sin(x₀) + x₂/2."""
    rng = np.random.default_rng(job.split)
    X, Z = rng.normal(size=(2000, 4)), rng.normal(size=(5000, 4))

    def law(R: Array) -> tuple[Array, Array]:
        return np.sin(R[:, 0]) + 0.5 * R[:, 2], np.exp(-2.007 + 0.678 * R[:, 1])

    y, target = (m + s * rng.normal(size=len(m)) for m, s in (law(X), law(Z)))
    predictive = BALIRegressor(random_state=job.split).fit(X, y).pred_dist(Z)
    m, s = law(Z)
    constant = np.mean(stats.norm.logpdf(target, m, np.sqrt((s**2).mean())))
    truth = {"truth": float(np.mean(stats.norm.logpdf(target, m, s))), "constant": float(constant)}
    return {"log_likelihood": metrics.log_likelihood(predictive, target)} | truth


def _constant_noise(job: Job) -> dict[str, float]:
    """Of the noise that was chosen, and of the same networks with one noise for all rows."""
    rng = np.random.default_rng(1000 + job.split)
    n, d = int(rng.integers(200, 1000)), int(rng.integers(2, 9))
    w, scale = rng.normal(size=(d, 3)), rng.uniform(0.1, 0.6)

    def law(R: Array) -> Array:
        return np.tanh(R @ w).sum(1)

    X, Z = rng.normal(size=(n, d)), rng.normal(size=(2000, d))
    y, target = (law(R) + scale * rng.normal(size=len(R)) for R in (X, Z))
    model = BALIRegressor(random_state=job.split).fit(X, y)
    predictive = model.pred_dist(Z)
    assert isinstance(predictive, RegressionPredictive)
    chosen = metrics.log_likelihood(predictive, target)
    if predictive.row_scale is None:
        return {"log_likelihood": chosen, "constant": chosen, "by_row": 0.0}
    typical = predictive.row_scale.square().mean(0).sqrt().expand_as(predictive.row_scale)
    known = RegressionPredictive(predictive.means, predictive.noise, predictive.inflation, predictive.dof, typical)
    return {"log_likelihood": chosen, "constant": metrics.log_likelihood(known, target), "by_row": 1.0}


# --- real ones --------------------------------------------------------------------------------------------------


def _load(name: str) -> Any:
    folder = data_folder()
    if folder is None or not (folder / name).is_file():
        raise ValueError(f"no file {name}; set BALI_DATA to a folder that has it")
    return np.load(folder / name, allow_pickle=False)


def _visits(job: Job) -> dict[str, float]:
    data = _load("counts/doctor_visits.npz")
    X, y = data["X"], data["y"].astype(float)
    X, Z, y, target = train_test_split(X, y, test_size=0.2, random_state=job.split)
    if job.method == "BALI":
        predictive: Any = BALIRegressor(likelihood="counts", random_state=job.split).fit(X, y).pred_dist(Z)
    else:
        kind = boosted_counts.BoostedCounts if job.method == boosted_counts.NAME else COUNT_MODELS[job.method]
        predictive = kind().fit(X, torch.tensor(y)).predict(Z)
    return _of_counts(predictive, target)


def _of_counts(predictive: Any, target: Array) -> dict[str, float]:
    pit = metrics.pit(predictive, torch.tensor(target), torch.Generator().manual_seed(0))[:, 0]
    return {
        "log_likelihood": metrics.log_likelihood(predictive, target),
        "crps": metrics.crps(predictive, target),
        "pit_p_value": float(stats.kstest(pit, "uniform").pvalue),
    }


def _unemployment(job: Job) -> dict[str, float]:
    data = _load("survival/unemployment.npz")
    X, t, over = data["X"], data["time"], data["event"] == 1
    train, test = train_test_split(np.arange(len(X)), test_size=0.2, random_state=job.split)
    y, target = durations(t[train], over[train]), durations(t[test], over[test])
    first, last = np.quantile(t[test], [0.05, 0.8])
    grid = np.linspace(float(first), float(last), 100)
    if job.method == "Cox":
        cox = Cox().fit(X[train], t[train], over[train])
        survival, order = cox.survival(X[test], grid), -cox.risk(X[test])
    else:
        if job.method == "BALI":
            given = np.column_stack([t[train], over[train]])
            model = BALIRegressor(likelihood="durations", random_state=job.split).fit(X[train], given)
            predictive: Any = model.pred_dist(X[test])
        else:
            predictive = LinearModel(Weibull()).fit(X[train], y).predict(X[test])
        survival = predictive.survival(torch.tensor(grid)).double().numpy()
        order = predictive.median[:, 0].double().numpy()
    return {
        "concordance": concordance_of(order, target),
        "integrated_brier": integrated_brier_of(survival, target, grid),
    }


def _one_split(job: Job) -> dict[str, float]:
    """As published: targets standardised by the training rows; a Gaussian with the prediction's mean and std. The number of
    the split is that of the model's seed."""
    data = _load(f"uci_regression/{job.set}.npz")
    train, test = data["train_index"][0], data["test_index"][0]
    X, y = data["X"], data["y"].astype(float)
    model = BALIRegressor(likelihood=_LIKELIHOODS[job.method], random_state=job.split)
    predictive: Any = model.fit(X[train], y[train]).pred_dist(X[test])
    scale = y[train].std()
    mean, std = (part[:, 0].double().numpy() for part in (predictive.mean, predictive.std))
    found = {
        "nll_gaussian": float(-stats.norm.logpdf(y[test], mean, std).mean() - np.log(scale)),
        "nll_density": -metrics.log_likelihood(predictive, y[test]) - float(np.log(scale)),
        "rmse": float(np.sqrt(np.square(y[test] - mean).mean()) / scale),
    }
    return found | ({"pit_p_value": _of_counts(predictive, y[test])["pit_p_value"]} if job.method == "BALI counts" else {})


#: Of the methods for one split.
_LIKELIHOODS = {"BALI": "auto", "BALI counts": "counts", "BALI numbers": "gaussian"}


#: Methods, splits, and what is measured.
SETS: dict[str, tuple[tuple[str, ...], int, Callable[[Job], dict[str, float]]]] = {
    "unemployment": (("Cox", "Weibull model", "BALI"), N_SPLITS, _unemployment),
    "noise by a column": (("BALI",), 3, _noise_by_column),
    "constant noise": (("BALI",), N_CONSTANT, _constant_noise),
    "doctor visits": ((*COUNT_MODELS, boosted_counts.NAME, "BALI"), N_SPLITS, _visits),
    "airfoil": (("BALI",), N_SPLITS, _one_split),
    "bikesharing": (("BALI", "BALI counts", "BALI numbers"), N_SPLITS, _one_split),
}
