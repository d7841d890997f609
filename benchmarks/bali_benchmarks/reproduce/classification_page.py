"""The classification benchmark, learning curves and images of another kind on the page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from bali_benchmarks.published import Published
from bali_benchmarks.reproduce import paper_figures, paper_settings
from bali_benchmarks.reproduce.classification import CHECK_ROWS, CHECK_SAMPLES, CURVES, OTHER
from bali_benchmarks.reproduce.job import Line
from bali_benchmarks.reproduce.markdown import EMPTY, cell, table, wrapped, yes_or_no
from bali_benchmarks.reproduce.summary import (
    METRICS,
    figure,
    figure_of,
    length,
    longest,
    of_one_length,
    paired_difference,
    unfinished,
    verdict,
)
from bali_benchmarks.reproduce.synthetic import image_name

Rows = Mapping[str, Sequence[Line]]

TITLES = {"paper": "BALI", "local": "BALI-L", "map": "MAP", "mc_dropout": "MC dropout", "ours": "BALI, defaults"}
#: Draws behind the curves of runs from before long runs could be kept.
EARLIER_DRAWS = 32
#: A curve has arrived where its negative log-likelihood is within this factor of the least that every method reaches.
ARRIVED = 1.1


def sets_in(rows: Sequence[Line], names: Sequence[str]) -> list[str]:
    return [name for name in names if any(row["set"] == name for row in rows)]


def benchmark(every: Rows) -> list[str]:
    rows, judged = longest(every["classification"]), ("paper", "mc_dropout")
    text = (
        "Two hidden layers of 256 leaky tanh units. `BALI`, `MAP` and `MC dropout` have the paper's settings, 5 "
        "random 80/20 splits of tables and 3 seeds on images, which in new runs see the same mini-batches; `defaults` "
        "is `BALIClassifier()`, whose networks have GELU units, 64 in each layer on tables (128 from 5,000 rows on), "
        "and whose verdict is against BALI in the paper. One thing differs from the paper's settings: BALI's first "
        "layer divides pixels by √(D + 1), as other layers do with their inputs. The paper does not say how pixels "
        "are scaled: here they share one mean and one scale, with which BALI and MC dropout learn faster than with "
        "pixels from 0 to 1 (on held-out training rows). MAP and MC dropout predict with Adam's moving average of the "
        "weights. The last columns are paired differences: between BALI and MC dropout, both with the paper's "
        "settings and with as many steps, and between the defaults and BALI where that has all of the paper's steps. "
        "Runs with fewer steps than the paper's have no verdict."
    )
    planned = {name: setting.n_splits for name, setting in paper_settings.CLASSIFICATION.items()}
    left = unfinished(rows, planned, list(TITLES))
    lines = ["## Classification", "", wrapped(text), *(["", wrapped(left)] if left else [])]
    header = ["set", "BALI in the paper", "BALI", "verdict", "MC dropout in the paper", "MC dropout", "verdict"]
    header += ["MAP", "defaults", "verdict", "BALI − MC dropout", "defaults − BALI"]
    for metric in ("accuracy", "ece", "auc", "log_likelihood"):
        body = []
        for name in sets_in(rows, list(paper_settings.CLASSIFICATION)):
            cells = [name]
            for method in judged:
                theirs = paper_figures.CLASSIFICATION[method].get(metric, {}).get(name)
                cells.append(EMPTY if theirs is None else f"{theirs.mean:.3f} ± {theirs.error:.3f}")
                cells += _judged(rows, name, method, metric, theirs)
            cells.append(cell(figure_of(rows, name, "map", metric)))
            theirs = paper_figures.CLASSIFICATION["paper"].get(metric, {}).get(name)
            cells += _judged(rows, name, "ours", metric, theirs)
            alike = of_one_length(every["classification"], name, judged)
            in_full = [row for row in rows if row["share"] == 1.0]
            gain = paired_difference(in_full, name, metric, "ours", "paper")
            body.append([*cells, cell(paired_difference(alike, name, metric, *judged)), cell(gain)])
        lines += ["", f"### {METRICS[metric][0]}", "", *table(header, body)]
    return lines


def _judged(rows: Sequence[Line], name: str, method: str, metric: str, theirs: Published | None) -> list[str]:
    """A figure and the verdict on it, of which runs with fewer steps than the paper's have none."""
    ours = figure_of(rows, name, method, metric)
    if ours is None or theirs is None:
        return [cell(ours), EMPTY]
    own = [row for row in rows if row["set"] == name and row["method"] == method]
    if any(row["share"] < 1.0 for row in own):
        return [cell(ours), f"not known: {length(own)} of the steps"]
    return [cell(ours), verdict(ours, theirs, metric)]


# --- learning curves --------------------------------------------------------------------------------------------


def mean_curve(rows: Sequence[Line], name: str, method: str) -> dict[str, list[float]] | None:
    """Means over members of the log-likelihoods, by step; members are trained together, in as many seconds."""
    own = [row["curve"] for row in rows if row["set"] == name and row["method"] == method and "curve" in row]
    if not own:
        return None
    means = {part: np.mean([curve[part] for curve in own], axis=0).tolist() for part in ("train", "test")}
    return {"steps": own[0]["steps"], "seconds": own[0]["seconds"]} | means


def arrival(curves: Mapping[str, Mapping[str, Sequence[float]]], unit: str = "steps") -> dict[str, float]:
    """The step, or second, at which each curve of new rows first is as good as the worst ever gets, but for a margin."""
    lowest = {method: -max(curve["test"]) for method, curve in curves.items()}
    level = ARRIVED * max(lowest.values())
    found = {}
    for method, curve in curves.items():
        found[method] = next(at for at, value in zip(curve[unit], curve["test"], strict=True) if -value <= level)
    return found


def curves_of(rows: Sequence[Line], name: str, methods: Sequence[str]) -> dict[str, dict[str, list[float]]]:
    """Of runs with as many steps."""
    alike = of_one_length(rows, name, methods)
    found = {method: mean_curve(alike, name, method) for method in methods}
    return {method: curve for method, curve in found.items() if curve is not None}


def convergence(every: Rows) -> list[str]:
    rows = every["classification"]
    methods = ("paper", "map", "mc_dropout")
    text = (
        "Negative log-likelihood in the runs of the classification benchmark (solid: new rows, dashed: training rows), by "
        f"{CHECK_SAMPLES} draws ({EARLIER_DRAWS} in runs that are not in full), at most {CHECK_ROWS:,} rows each, against "
        "steps and against seconds of one thread, in which all seeds are trained together. The paper says that BALI needs "
        "significantly fewer steps. Shown is the first step at which a method is within "
        f"{100 * (ARRIVED - 1):.0f} % of what all of them reach, and its second. All methods of a row have as many steps, "
        "which may be fewer than the paper's: then it tells of the beginning only."
    )
    body = []
    found = {name: curves_of(rows, name, methods) for name in CURVES}
    names = [name for name, curves in found.items() if len(curves) > 1]
    for name in names:
        curves = found[name]
        steps, seconds = arrival(curves), arrival(curves, "seconds")
        others = [steps[m] for m in methods[1:] if m in steps]
        fewer = EMPTY if "paper" not in steps or not others else yes_or_no(steps["paper"] < min(others))
        steps_run = length(of_one_length(rows, name, methods))
        arrivals = [f"{steps[m]:,} ({seconds[m]:.0f} s)" if m in steps else EMPTY for m in methods]
        body.append([name, steps_run, *arrivals, fewer])
    header = ["set", "of the steps", *[TITLES[m] for m in methods], "BALI needs fewer"]
    images = [line for name in names for line in ("", f"![{name}](images/{image_name('convergence', name)})")]
    return ["## Convergence", "", wrapped(text), "", *table(header, body), *images] if names else []


def local_reparametrisation(every: Rows) -> list[str]:
    rows = every["classification"]
    found = {name: curves_of(rows, name, ("paper", "local")) for name in CURVES}
    names = [name for name, curves in found.items() if len(curves) == 2]
    text = (
        "As in the convergence section, for BALI with weight samples and with local reparametrisation (BALI-L). The paper "
        "says that BALI-L learns a bit faster and overfits more: the gap is that between training and new rows at the end."
    )
    body = []
    for name in names:
        steps = arrival(found[name])
        for method, curve in found[name].items():
            train, test = curve["train"][-1], curve["test"][-1]
            cells = [f"{train:.3f}", f"{test:.3f}", f"{steps[method]:,}", f"{train - test:.3f}"]
            body.append([name, length(of_one_length(rows, name, ("paper", "local"))), TITLES[method], *cells])
    header = ["set", "of the steps", "variant", "log-likelihood, training", "new rows", "step of arrival", "gap"]
    images = [line for name in names for line in ("", f"![{name}](images/{image_name('local', name)})")]
    title = "## Local reparametrisation in the classification benchmark"
    return [title, "", wrapped(text), "", *table(header, body), *images] if names else []


# --- images of another kind -------------------------------------------------------------------------------------


#: What own and other images are told apart by.
BY = {"entropy": "by entropy", "mutual_information": "by mutual information"}


def out_of_distribution(every: Rows) -> list[str]:
    rows = [row for row in longest(every["classification"]) if "ood" in row]
    text = (
        "Networks of the classification benchmark, shown test images of the set that they were trained on and of the other "
        "one. Area under the ROC curve of telling these apart by the entropy of the prediction, as in the paper, and by the "
        "mutual information of class and weights (MAP has none). The paper says that BALI is like MC dropout when trained "
        "on Fashion-MNIST and significantly better when trained on MNIST; the difference is paired. How much wider the "
        "prior of the defaults is in predictions was chosen with training images of these two sets, trained on MNIST, so "
        "that their figure there is of a known pair. The second table has the average precision of finding images of "
        "the other kind, and the share of these that is missed where 95 % of the own ones are let through."
    )
    body, others = [], []
    names = sets_in(rows, list(OTHER))
    for name in names:
        for method, title in TITLES.items():
            own = {row["split"]: row["ood"] for row in rows if row["set"] == name and row["method"] == method}
            dropout = {row["split"]: row["ood"] for row in rows if row["set"] == name and row["method"] == "mc_dropout"}
            if not own:
                continue
            scores = ["entropy"] if method == "map" else ["entropy", "mutual_information"]
            auroc, aupr, fpr95 = (
                [cell(figure([ood[score][key] for ood in own.values()]) if score in scores else None) for score in BY]
                for key in ("auroc", "aupr", "fpr95")
            )
            shared = own.keys() & dropout.keys() if method != "mc_dropout" else set()
            difference = figure([own[k]["entropy"]["auroc"] - dropout[k]["entropy"]["auroc"] for k in sorted(shared)])
            steps_run = length([row for row in rows if row["set"] == name and row["method"] == method])
            body.append([name, title, steps_run, *auroc, cell(difference)])
            others.append([name, title, *aupr, *fpr95])
    header = ["trained on", "method", "of the steps", *BY.values(), "by entropy, less MC dropout's"]
    more = ["trained on", "method", *(f"{what} {by}" for what in ("precision", "missed") for by in BY.values())]
    images = [line for name in names for line in ("", f"![{name}](images/{image_name('ood', name)})")]
    tables = [*table(header, body), "", *table(more, others)]
    return ["## Images of another kind", "", wrapped(text), "", *tables, *images] if names else []
