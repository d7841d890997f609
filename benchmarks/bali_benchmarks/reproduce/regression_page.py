"""The regression benchmark on the page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from bali_benchmarks.reproduce import paper_figures, paper_settings
from bali_benchmarks.reproduce.job import Line
from bali_benchmarks.reproduce.markdown import EMPTY, cell, table, wrapped
from bali_benchmarks.reproduce.summary import METRICS, figure_of, longest, paired_difference, unfinished, verdict


def section(every: Mapping[str, Sequence[Line]]) -> list[str]:
    rows = longest(every["regression"])
    sets = [name for name in paper_settings.REGRESSION if any(row["set"] == name for row in rows)]
    text = (
        "One hidden layer of 50 rectifiers (protein: 100). `its settings` are the paper's table of hyperparameters, on the "
        "splits that were published with the sets (20, protein 5) and on as many random ones; `defaults` is "
        "`BALIRegressor()` on the published ones, whose networks have two hidden layers of 64 (128 from 5,000 rows on). One "
        "thing differs from the paper's settings: the least noise of the "
        f"output is {paper_settings.OUTPUT_NOISE_FLOOR:g} of the targets' variance, "
        f"not {paper_settings.NOISE_FLOOR:g}, which would "
        "rule out the log-likelihoods that it reports. Figures are in the units of the targets."
    )
    planned = {name: setting.n_splits for name, setting in paper_settings.REGRESSION.items()}
    left = unfinished(rows, planned, ("paper", "paper-random", "ours"))
    lines = ["## Regression", "", wrapped(text), *(["", wrapped(left)] if left else [])]
    header = ["set", "paper", "its settings", "verdict", "its settings, random splits", "verdict", "defaults", "verdict"]
    for metric, theirs in paper_figures.REGRESSION.items():
        body, against_others = [], []
        for name in sets:
            cells = [name, f"{theirs[name].mean:.3f} ± {theirs[name].error:.3f}"]
            for method in ("paper", "paper-random", "ours"):
                ours = figure_of(rows, name, method, metric)
                cells += [cell(ours), EMPTY if ours is None else verdict(ours, theirs[name], metric)]
            difference = paired_difference(rows, name, metric, "ours", "paper")
            body.append([*cells, cell(difference)])
            against_others.append(_against_others(rows, name, metric))
        lines += ["", f"### {METRICS[metric][0]}", "", *table([*header, "defaults − its settings"], body)]
        lines += ["", *table(["set", "best baseline in the paper", "its figure", "defaults", "verdict"], against_others)]
    return lines


def _against_others(rows: Sequence[Line], name: str, metric: str) -> list[str]:
    """Beside the best of the methods that the paper compares BALI with."""
    baseline, theirs = paper_figures.BEST_BASELINE[metric][name]
    ours = figure_of(rows, name, "ours", metric)
    judged = EMPTY if ours is None else verdict(ours, theirs, metric)
    return [name, baseline, f"{theirs.mean:.3f} ± {theirs.error:.3f}", cell(ours), judged]
