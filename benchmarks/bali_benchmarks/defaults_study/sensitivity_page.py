"""The page: what the rules are, and what it costs not to follow them."""

from __future__ import annotations

from collections.abc import Sequence

from bali_benchmarks.defaults_study.cases import FACTORS, SETS, Line
from bali_benchmarks.defaults_study.costs import BAR, ChangeCost, costs, of_method
from bali_benchmarks.defaults_study.figure import drawn_costs
from bali_benchmarks.defaults_study.rules import HEADER, rules, rules_for
from bali_benchmarks.defaults_study.sensitivity_fits import BASELINE_STEPS, BEFORE_STEPS, LABELS, METHODS, MOST
from bali_benchmarks.reproduce.markdown import EMPTY, cell, table, wrapped
from bali_benchmarks.reproduce.summary import Figure, figure, figure_of

IMAGE = "images/defaults.png"
WHAT = {
    "bali": "`BALIRegressor()`.",
    "before": (
        f"The paper's settings for each set, which were chosen for it, with {BEFORE_STEPS:,} steps; one posterior, no "
        "held-out rows, no correction of the noise."
    ),
    "noisy_kfac": (
        f"Up to {BASELINE_STEPS:,} steps. Its prior variance and its weight of the KL term are chosen on held-out rows for "
        "each split, and scaled around the choice."
    ),
    "map": (
        f"Up to {BASELINE_STEPS:,} steps. Its learning rate and prior precision are chosen on held-out rows for each split, "
        "and scaled around the choice."
    ),
}
SCORES = {"log_likelihood": "log-likelihood", "rmse": "RMSE"}


def to_markdown(lines: Sequence[Line]) -> str:
    """It says nothing that is not in the lines or in the code."""
    written = ["# Defaults, and what it costs to change them", "", *_introduction(lines), "", "## The rules", "", *rules()]
    sizes = _sizes(lines)
    if sizes:
        written += ["", "What they give for the sets of the study:", "", *table(("set", *HEADER), sizes)]
    written += ["", "## A factor of three", "", *_factor_of_three(lines)]
    for method in METHODS:
        written += ["", f"### {METHODS[method].title}", "", *_method(lines, method)]
    if lines:
        written += ["", "## Scores as it is", "", *_scores(lines), "", "## Time", "", *_times(lines)]
    return "\n".join(written) + "\n"


def _introduction(lines: Sequence[Line]) -> list[str]:
    text = (
        "`BALIRegressor()` and `BALIClassifier()` set their hyperparameters from the size of the table, from the table "
        "itself, and from rows that are held out of it; never from test rows. This page says how, and how much a test score "
        "changes when a hyperparameter is a factor of three off. Written by `bali-benchmarks defaults`."
    )
    look = (
        "**A quick run: few steps (not those named below) on few rows. It shows that everything works; its figures mean "
        "nothing else.**"
    )
    return [wrapped(text), *(["", wrapped(look)] if any(line["quick"] for line in lines) else [])]


def _sizes(lines: Sequence[Line]) -> list[list[str]]:
    size = {line["set"]: (line["rows"], line["columns"]) for line in lines}
    return [[name, *rules_for(*size[name])] for name in SETS if name in size]


def _factor_of_three(lines: Sequence[Line]) -> list[str]:
    text = (
        "Each hyperparameter alone is multiplied by ⅓ and by 3, on published splits of the regression sets. The cost is the "
        "test log-likelihood of the method as it is minus the one with the change, on the same split with the same seed, in "
        "nats a row; means are first over the splits of a set and then over sets, ± the standard error over sets. A "
        f"negative cost is a gain. The bar is a mean of {BAR:g}. "
        f"An averaging rate is at most {MOST['ema_rate']:g}, and scaled no further. Runs that diverged have no score; one "
        "of them is enough to miss the bar."
    )
    drawn = drawn_costs(lines)
    picture = ["", f"![Log-likelihood lost by scaling each hyperparameter of each method]({IMAGE})"] if drawn else []
    body = [_summary(method, drawn.get(method, [])) for method in METHODS]
    header = ("method", "scalings within the bar", "mean cost", "largest mean cost")
    return [wrapped(text), *picture, "", *table(header, body)]


def _summary(method: str, own: Sequence[ChangeCost]) -> list[str]:
    title = METHODS[method].title
    means = {(cost.hyperparameter, cost.factor): cost.mean.mean for cost in own if cost.mean is not None}
    if not means:
        return [title, *[EMPTY] * 3]
    worst = max(means, key=lambda which: means[which])
    within = sum(bool(cost.is_within_bar) for cost in own)
    overall = sum(means.values()) / len(means)
    name, factor = worst
    return [
        title,
        f"{within} of {len(own)}",
        f"{overall:.3f}",
        f"{means[worst]:.3f} ({_label(name)} × {_times_sign(factor)})",
    ]


def _method(lines: Sequence[Line], method: str) -> list[str]:
    own = of_method(lines, method)
    if not own:
        return [wrapped(f"{WHAT[method]} Runs of it are missing: `bali-benchmarks defaults --method {method}` makes them.")]
    by_name: dict[str, list[ChangeCost]] = {}
    for cost in costs(lines, method):
        by_name.setdefault(cost.hyperparameter, []).append(cost)
    names = [name for name in SETS if any(line["set"] == name for line in own)]
    splits = {line["split"] for line in own}
    text = (
        f"{WHAT[method]} Sets: {', '.join(names)}; up to {len(splits)} {'split' if len(splits) == 1 else 'splits'} of each."
    )
    factors = [_times_sign(factor) for factor in FACTORS]
    header = (
        "hyperparameter",
        *(f"× {f}, nats" for f in factors),
        *(f"× {f}, RMSE" for f in factors),
        "worst set",
        "verdict",
    )
    body = [
        [
            _label(name),
            *(_nats(cost) for cost in pair),
            *(_percent(cost.mean_rmse) for cost in pair),
            _worst(pair),
            _verdict(pair),
        ]
        for name, pair in by_name.items()
    ]
    return [wrapped(text), "", *table(header, body)]


def _nats(cost: ChangeCost) -> str:
    lost = f"{cost.diverged} diverged" if cost.diverged else ""
    if cost.mean is None:
        return lost or EMPTY
    return f"{cost.mean}, {lost}" if lost else str(cost.mean)


def _percent(change: Figure | None) -> str:
    return EMPTY if change is None else f"{100 * change.mean:+.1f} %"


def _worst(pair: Sequence[ChangeCost]) -> str:
    """The set and factor of the largest cost."""
    found = [(cost.nats[cost.worst_set], cost.worst_set, cost.factor) for cost in pair if cost.worst_set is not None]
    if not found:
        return EMPTY
    nats, name, factor = max(found)
    return f"{name} × {_times_sign(factor)}: {nats:.3f}"


def _verdict(pair: Sequence[ChangeCost]) -> str:
    judged = [cost.is_within_bar for cost in pair]
    if False in judged:
        return "over the bar"
    return EMPTY if None in judged else "within the bar"


def _scores(lines: Sequence[Line]) -> list[str]:
    as_is = [line for line in lines if line["hyperparameter"] is None]
    methods = [method for method in METHODS if of_method(as_is, method)]
    names = [name for name in SETS if any(line["set"] == name for line in as_is)]
    written = ["Test scores in the units of the targets, mean ± standard error over the splits that were run."]
    for metric, title in SCORES.items():
        body = [[name, *(cell(figure_of(as_is, name, method, metric)) for method in methods)] for name in names]
        written += ["", *table((title, *(METHODS[method].title for method in methods)), body)]
    return written


def _times(lines: Sequence[Line]) -> list[str]:
    body = []
    for method, studied in METHODS.items():
        seconds = [line["seconds"] for line in of_method(lines, method)]
        mean = figure(seconds)
        body += [] if mean is None else [[studied.title, f"{mean.n}", f"{mean.mean:.1f}", f"{sum(seconds) / 60:.1f}"]]
    return table(("method", "runs", "mean seconds", "minutes in all"), body)


def _label(name: str) -> str:
    return LABELS.get(name, name)


def _times_sign(factor: float) -> str:
    return "⅓" if factor < 1 else f"{factor:g}"
