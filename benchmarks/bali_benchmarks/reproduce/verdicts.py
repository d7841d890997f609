"""What the paper claims, what was measured, and whether they agree: the table that the page opens with.

A claim about several sets is judged on those whose runs have the paper's length; where one of them is missing, the verdict
is that it is not known yet. It agrees where it is true of all sets, and in part where it is of at least half of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

from bali_benchmarks.reproduce import paper_figures, paper_settings
from bali_benchmarks.reproduce.classification import CURVES
from bali_benchmarks.reproduce.classification_page import TITLES, arrival, curves_of
from bali_benchmarks.reproduce.job import Line
from bali_benchmarks.reproduce.markdown import table, wrapped
from bali_benchmarks.reproduce.summary import ALLOWED, Figure, figure, figure_of, gap, paired_difference
from bali_benchmarks.reproduce.synthetic_page import is_overconfident, underfits

Every = Mapping[str, Sequence[Line]]

#: An excellent fit of a regression leaves no more than this many times the noise that the data were made with, one of
#: classes at most this share of wrong ones.
EXCELLENT_NOISE, EXCELLENT_ERRORS = 1.5, 0.05
#: Standard deviations of the noise in the paper's two regressions.
MADE_WITH = {"sines-trend": 0.02, "sinc": 0.1}
CALIBRATED_BETTER = 4  # of the five sets, says the paper


class Verdict(NamedTuple):
    claim: str
    measured: str
    verdict: str
    source: str  # the experiment whose lines it is from


class Found(NamedTuple):
    """Of a claim about several sets: on how many it is true, and of how many the runs have the paper's length."""

    true: int
    known: int
    planned: int

    @property
    def verdict(self) -> str:
        if self.known < self.planned:
            return f"not known yet ({self.known} of {self.planned} in full)"
        if self.true == self.known:
            return "agrees"
        return "in part" if 2 * self.true >= self.known else "does not agree"


def section(every: Every) -> list[str]:
    """Nothing where there are no lines to judge by."""
    found = [verdict for judge in JUDGES for verdict in judge(every)]
    if not found:
        return []
    text = (
        "A claim about several sets agrees where it is true of all of them and in part where it is of at least half; it is "
        "not known yet where a run has fewer steps than the paper's. Each row's raw lines are a click away."
    )
    body = [[v.claim, v.measured, v.verdict, f"[lines](../results/reproduce-{v.source}.jsonl)"] for v in found]
    header = ["what the paper says", "what was measured", "verdict", "raw"]
    return ["## Verdicts", "", wrapped(text), "", *table(header, body)]


# --- synthetic sets ---------------------------------------------------------------------------------------------


def synthetic(every: Every) -> Iterator[Verdict]:
    rows = [row for row in every.get("synthetic", ()) if row["method"] == "paper"]
    if not rows:
        return
    good = [_is_excellent(row) for row in rows]
    fits = ", ".join(f"{row['set']} {row['fit_train']:.3f}" for row in rows)
    measured = f"error or accuracy on the training rows: {fits}"
    yield Verdict("excellent fit of synthetic data", measured, Found(sum(good), len(rows), 3).verdict, "synthetic")
    ratios = [row["std_outside"] / row["std_inside"] for row in rows]
    measured = "std away from the data, of that beside it: " + ", ".join(f"{ratio:.1f}" for ratio in ratios) + " times"
    found = Found(sum(ratio > 1 for ratio in ratios), len(rows), 3)
    yield Verdict("more uncertain away from the data", measured, found.verdict, "synthetic")


def _is_excellent(row: Line) -> bool:
    if row["task"] == "regression":
        return bool(row["fit_train"] <= EXCELLENT_NOISE * MADE_WITH[row["set"]])
    return bool(row["fit_train"] >= 1.0 - EXCELLENT_ERRORS)


def bayes_by_backprop(every: Every) -> Iterator[Verdict]:
    bali = {row["set"]: row for row in every.get("synthetic", ()) if row["method"] == "paper"}
    rows = [row for row in every.get("bbb-synthetic", ()) if row["set"] in bali]
    weights = sorted({row["kl_weight"] for row in rows})
    if not weights:
        return
    for claim, weight, judge in (
        ("Bayes by backprop underfits where the KL divergence has a large weight", weights[-1], underfits),
        ("and is overconfident where it has a small one", weights[0], is_overconfident),
    ):
        own = [row for row in rows if row["kl_weight"] == weight]
        true = [row["set"] for row in own if judge(row, bali[row["set"]])]
        measured = f"KL weight {weight:g}: on {_listed(true)}"
        yield Verdict(claim, measured, Found(len(true), len(own), 3).verdict, "bbb-synthetic")


# --- regression -------------------------------------------------------------------------------------------------


def regression(every: Every) -> Iterator[Verdict]:
    rows = [row for row in every.get("regression", ()) if row["share"] == 1.0]
    pairs = [(metric, name) for metric, by_set in paper_figures.REGRESSION.items() for name in by_set]
    for method, splits in (("paper-random", "random splits, as the paper has"), ("paper", "published splits")):
        gaps = {pair: _gap(rows, *pair, method) for pair in pairs}
        known = {pair: value for pair, value in gaps.items() if value is not None}
        if not known:
            continue
        alike = [pair for pair, value in known.items() if abs(value) <= ALLOWED]
        better = sum(value < -ALLOWED for value in known.values())
        measured = f"{len(alike)} of {len(known)} alike, {better} better, {len(known) - len(alike) - better} worse"
        found = Found(len(alike) + better, len(known), len(pairs))
        yield Verdict(f"regression: its figures, {splits}", measured, found.verdict, "regression")
    others = [_gap_to_baseline(rows, metric, name) for metric, name in pairs]
    found_gaps = [value for value in others if value is not None]
    if found_gaps:
        fine = sum(value <= ALLOWED for value in found_gaps)
        measured = f"not worse than the best published baseline in {fine} of {len(found_gaps)} figures, random splits"
        verdict = Found(fine, len(found_gaps), len(pairs)).verdict
        yield Verdict("regression: outperforms the baselines or is like them", measured, verdict, "regression")


def _gap(rows: Sequence[Line], metric: str, name: str, method: str) -> float | None:
    ours = figure_of(rows, name, method, metric)
    return None if ours is None else gap(ours, paper_figures.REGRESSION[metric][name], metric)


def _gap_to_baseline(rows: Sequence[Line], metric: str, name: str) -> float | None:
    ours = figure_of(rows, name, "paper-random", metric)
    return None if ours is None else gap(ours, paper_figures.BEST_BASELINE[metric][name][1], metric)


# --- classification ---------------------------------------------------------------------------------------------


def classification(every: Every) -> Iterator[Verdict]:
    rows = every.get("classification", ())
    if not rows:
        return
    full, sets = [row for row in rows if row["share"] == 1.0], list(paper_settings.CLASSIFICATION)
    for method in ("paper", "mc_dropout"):
        theirs = paper_figures.CLASSIFICATION[method]
        gaps = {}
        for name in sets:
            figures = [(metric, figure_of(full, name, method, metric)) for metric in ("accuracy", "ece")]
            gaps[name] = [gap(ours, theirs[metric][name], metric) for metric, ours in figures if ours is not None]
        known = {name: values for name, values in gaps.items() if len(values) == 2}
        alike = [name for name, values in known.items() if max(abs(value) for value in values) <= ALLOWED]
        measured = f"both alike on {_listed(alike)}" + (f", in full: {_listed(list(known))}" if known else "")
        claim = f"classification: its accuracy and calibration error of {TITLES[method]}"
        yield Verdict(claim, measured, Found(len(alike), len(known), len(sets)).verdict, "classification")
    yield from _beside_dropout(full, sets)


def _beside_dropout(full: Sequence[Line], sets: Sequence[str]) -> Iterator[Verdict]:
    accuracy, ece = (
        {name: paired_difference(full, name, metric, "paper", "mc_dropout") for name in sets}
        for metric in ("accuracy", "ece")
    )
    known = {name: difference for name, difference in accuracy.items() if difference is not None}
    alike = [name for name, d in known.items() if abs(d.mean) <= ALLOWED * (d.error or 0.0)]
    measured = f"paired differences in full: {_differences(known)}"
    verdict = Found(len(alike), len(known), len(sets)).verdict
    yield Verdict("BALI is as accurate as MC dropout", measured, verdict, "classification")
    known = {name: difference for name, difference in ece.items() if difference is not None}
    better = sum(difference.mean < 0 for difference in known.values())
    verdict = Found(better, len(known), len(sets)).verdict
    if len(known) == len(sets):
        verdict = "agrees" if better >= CALIBRATED_BETTER else "does not agree"
    measured = f"paired differences of calibration errors in full: {_differences(known)}"
    yield Verdict(f"and is better calibrated on {CALIBRATED_BETTER} of 5 sets", measured, verdict, "classification")


def curves(every: Every) -> Iterator[Verdict]:
    rows = every.get("classification", ())
    full = [row for row in rows if row["share"] == 1.0]
    if not rows:
        return
    fewer, known = [], []
    for name in CURVES:
        found = curves_of(full, name, ("paper", "map", "mc_dropout"))
        if len(found) == 3:
            known.append(name)
            steps = arrival(found)
            fewer += [name] if steps["paper"] < min(steps["map"], steps["mc_dropout"]) else []
    measured = f"fewer steps to within 10 % of what all reach on {_listed(fewer)}"
    verdict = Found(len(fewer), len(known), len(CURVES)).verdict
    yield Verdict("BALI converges in significantly fewer steps", measured, verdict, "classification")
    faster, wider, known = [], [], []
    for name in CURVES:
        both = curves_of(full, name, ("paper", "local"))
        if len(both) == 2:
            known.append(name)
            steps, gaps = arrival(both), {m: curve["train"][-1] - curve["test"][-1] for m, curve in both.items()}
            faster += [name] if steps["local"] <= steps["paper"] else []
            wider += [name] if gaps["local"] > gaps["paper"] else []
    true = len(set(faster) & set(wider))
    measured = f"as fast or faster on {_listed(faster)}; a wider gap on {_listed(wider)}"
    verdict = Found(true, len(known), len(CURVES)).verdict
    yield Verdict("local reparametrisation learns a bit faster and overfits more", measured, verdict, "classification")


def images(every: Every) -> Iterator[Verdict]:
    rows = [row for row in every.get("classification", ()) if "ood" in row]
    if not rows:
        return
    for name, claim, judge in (
        ("fashion_mnist", "trained on Fashion-MNIST, other images are told apart as by MC dropout", _is_like),
        ("mnist", "trained on MNIST, significantly better", _is_better),
    ):
        full = [row for row in rows if row["set"] == name and row["share"] == 1.0]
        own, dropout = (
            {row["split"]: row["ood"]["entropy"]["auroc"] for row in full if row["method"] == method}
            for method in ("paper", "mc_dropout")
        )
        difference = figure([own[k] - dropout[k] for k in sorted(own.keys() & dropout.keys())])
        measured = "no runs in full" if difference is None else f"area under the ROC curve, less dropout's: {difference}"
        true = difference is not None and judge(difference)
        verdict = Found(int(true), int(difference is not None), 1).verdict
        yield Verdict(claim, measured, verdict, "classification")


def _is_like(difference: Figure) -> bool:
    return abs(difference.mean) <= ALLOWED * (difference.error or 0.0)


def _is_better(difference: Figure) -> bool:
    return difference.mean > ALLOWED * (difference.error or 0.0)


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names) if names else "none"


def _differences(known: Mapping[str, Figure]) -> str:
    return ", ".join(f"{name} {difference}" for name, difference in known.items()) if known else "none"


JUDGES: list[Callable[[Every], Iterator[Verdict]]] = [
    synthetic,
    bayes_by_backprop,
    regression,
    classification,
    curves,
    images,
]
