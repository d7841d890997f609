"""Pictures that need the lines of several jobs: learning curves and ROC curves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from bali.predictive import plots
from bali_benchmarks.reproduce.classification import CURVES, OTHER
from bali_benchmarks.reproduce.classification_page import TITLES, curves_of
from bali_benchmarks.reproduce.job import Line
from bali_benchmarks.reproduce.summary import longest
from bali_benchmarks.reproduce.synthetic import draw_curves, image_name


def draw(every: Mapping[str, Sequence[Line]], images: Path) -> None:
    """All that the lines have data for."""
    rows = every.get("classification", ())
    for name in CURVES:
        for kind, methods in {"convergence": ("paper", "mc_dropout", "map"), "local": ("paper", "local")}.items():
            curves = curves_of(rows, name, methods)
            if len(curves) > 1:
                titled = {TITLES[method]: curve for method, curve in curves.items()}
                draw_curves(titled, name, images / image_name(kind, name), against=("steps", "seconds"))
    for name in OTHER:
        own = [row for row in longest(rows) if row["set"] == name and "ood" in row]
        if own:
            draw_roc(own, name, images / image_name("ood", name))


def draw_roc(rows: Sequence[Line], name: str, path: Path) -> None:
    """Mean ROC curves over seeds: images of the training set that pass, against those of the other set that do."""
    path.parent.mkdir(parents=True, exist_ok=True)
    figure, (ax,) = plots.new_figure(width=5.0, height=4.4)
    colours = dict(zip(TITLES, (plots.BLUE, plots.MUTED, plots.VERMILLION, plots.ORANGE, plots.INK), strict=True))
    for method, title in TITLES.items():
        own = [row["ood"]["true_positives"] for row in rows if row["method"] == method]
        if own:
            grid = np.linspace(0.0, 1.0, len(own[0]))
            ax.plot(grid, np.mean(own, axis=0), color=colours[method], label=title)
    ax.set_xlabel(f"{OTHER[name]} taken for {name}")
    ax.set_ylabel(f"{name} taken for {name}")
    ax.legend(fontsize="small", loc="lower right")
    figure.savefig(path, dpi=100)
