"""docs/likelihood_results.md from all lines."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from bali_benchmarks.likelihoods.likelihood_runs import SETS

Rows = Sequence[dict[str, Any]]
_NOT_SCORES = ("set", "method", "split", "seconds", "version", "torch")
_ABOUT = {
    "unemployment": "Weeks out of work, 41 % of them not over yet; five random 80/20 splits. Bars: concordance at least, "
    "and integrated Brier score at most, those of both other models.",
    "noise by a column": "2,000 × 4, three draws; the standard deviation of the noise is exp(−2.007 + .678 x₁). `truth` is "
    "the law itself, `constant` the true mean with one noise. Bar: at most .058 below the truth (.53 of .588).",
    "constant noise": "Twenty tables whose noise is the same in all rows. `constant` are the same networks with one noise. "
    "Bar: at most .005 nats less on average.",
    "doctor visits": "Visits in a year; five random 80/20 splits. Bar: a better log-likelihood than the other models, and "
    "transforms that are uniform (p-value of Kolmogorov and Smirnov).",
    "airfoil": "The published split, five seeds of the model, in units of the training targets' standard deviation; "
    "`nll_gaussian` is of a Gaussian with the prediction's mean and standard deviation. Bars: `nll_gaussian` at most −.93, "
    "RMSE at most .125.",
    "bikesharing": "As airfoil. `BALI` has nothing set and chooses between numbers, their logarithms and counts; `BALI "
    "numbers` is a Gaussian with noise by row. Bars: `nll_gaussian` at most −.74, that of `BALI numbers` below −.73; RMSE "
    "at most .21.",
}


def to_markdown(rows: Rows) -> str:
    lines = [
        "# Likelihoods, measured",
        "",
        "`BALIRegressor` with nothing set but the kind of observation, beside linear models by maximum likelihood (inputs "
        "standardised; Cox's with Breslow's baseline) and CatBoost with its defaults. Mean ± standard error over splits, "
        "and the version of the library that they are of. Written by `bali-benchmarks likelihoods`.",
    ]
    for name, (methods, _, _) in SETS.items():
        own = [row for row in rows if row["set"] == name]
        if not own:
            continue
        scores = list(dict.fromkeys(key for row in own for key in row if key not in _NOT_SCORES))
        lines += ["", f"## {name.capitalize()}", "", _ABOUT[name], ""]
        lines += [f"| method | splits | {' | '.join(scores)} | seconds | version |", f"|{'---|' * (len(scores) + 4)}"]
        for method in methods:
            of_method = [row for row in own if row["method"] == method]
            if of_method:
                cells = [_mean([row[key] for row in of_method if key in row]) for key in (*scores, "seconds")]
                versions = ", ".join(sorted({row["version"] for row in of_method}))
                lines.append(f"| {method} | {len(of_method)} | {' | '.join(cells)} | {versions} |")
    return "\n".join(lines) + "\n"


def _mean(values: Sequence[float]) -> str:
    if not values:
        return "–"
    mean = f"{np.mean(values):.3f}"
    return mean if len(values) == 1 else f"{mean} ± {np.std(values, ddof=1) / np.sqrt(len(values)):.3f}"
