"""How much of a score is luck: fits with the defaults to the same rows, which differ in their seeds only."""

from __future__ import annotations

import time
import warnings
from collections.abc import Collection
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.progress import track
from sklearn.exceptions import ConvergenceWarning

import bali
from bali.predictive import metrics
from bali_benchmarks.datasets import load
from bali_benchmarks.lines import append_line, read_lines
from bali_benchmarks.threads import threads_for

SETS = ("yacht", "concrete", "energy", "redwine", "kin8nm", "powerplant", "protein")
SPLIT, N_SEEDS = 1, 10
#: Standard deviation of the test log-likelihood over the seeds, nats a row, at most.
BAR = 0.05


def run_seed(name: str, seed: int) -> dict[str, Any]:
    split = load(name).split(SPLIT)
    start = time.perf_counter()
    with warnings.catch_warnings(), threads_for((1,)):
        warnings.simplefilter("ignore", ConvergenceWarning)
        model = bali.BALIRegressor(random_state=seed).fit(split.X_train, split.y_train)
    seconds = time.perf_counter() - start
    predictive, target = model.pred_dist(split.X_test), torch.as_tensor(split.y_test)
    return {
        "set": name,
        "split": SPLIT,
        "seed": seed,
        "log_likelihood": metrics.log_likelihood(predictive, target),
        "rmse": metrics.rmse(predictive, target),
        "kept": model.encoding_,
        "seconds": round(seconds, 1),
    }


def check(sets: Collection[str]) -> None:
    unknown = [name for name in sets if name not in SETS]
    if unknown:
        raise ValueError(f"there is no set {unknown[0]!r}; there are {', '.join(SETS)}")


def run(out: Path, page: Path, sets: Collection[str] = ()) -> None:
    """Run what is not in the file yet, of these sets or of all; then write the page."""
    check(sets)
    rows = read_lines(out)
    done = {(row["set"], row["seed"]) for row in rows}
    left = [(name, seed) for name in sets or SETS for seed in range(N_SEEDS) if (name, seed) not in done]
    for name, seed in track(left, description="seeds"):
        rows.append(append_line(out, run_seed(name, seed)))
    page.write_text(to_markdown(rows), encoding="utf-8")


def to_markdown(rows: list[dict[str, Any]]) -> str:
    lines = [
        "# How much of a fit is luck",
        "",
        f"`BALIRegressor(random_state=seed)` on the training rows of published split {SPLIT} of each of the study's sets,",
        f"for {N_SEEDS} seeds. A seed draws where networks start, the order of the rows, and which rows are held out. The",
        f"test log-likelihood, nats a row, should have a standard deviation of at most {BAR} over the seeds.",
        "Written by `bali-benchmarks seeds`.",
        "",
        "| set | seeds | log-likelihood | deviation | least and largest | RMSE | deviation | bar |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for name in SETS:
        own = [row for row in rows if row["set"] == name]
        if len(own) < 2:
            lines.append(f"| {name} | {len(own)} | – | – | – | – | – | – |")
            continue
        scores, errors = (np.array([row[key] for row in own]) for key in ("log_likelihood", "rmse"))
        spread = scores.std(ddof=1)
        lines.append(
            f"| {name} | {len(own)} | {scores.mean():.3f} | {spread:.3f} | {scores.min():.3f}, {scores.max():.3f} "
            f"| {errors.mean():.3f} | {errors.std(ddof=1):.3f} | {'met' if spread <= BAR else 'missed'} |"
        )
    return "\n".join(lines) + "\n"
