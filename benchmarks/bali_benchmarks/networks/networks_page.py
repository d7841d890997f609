"""docs/networks.md, from the lines of `bali-benchmarks networks`."""

from __future__ import annotations

from collections.abc import Sequence

from bali_benchmarks.networks import scaled_rules_page
from bali_benchmarks.networks.adam_search import (
    DECAYS,
    MOST_SCORES,
    MOST_SCORES_REGRESSION,
    PATIENCE,
    PATIENCE_REGRESSION,
    RATES,
)
from bali_benchmarks.networks.network_fits import ENSEMBLE as N_NETWORKS
from bali_benchmarks.networks.network_fits import SAMPLES
from bali_benchmarks.networks.network_tasks import TASKS
from bali_benchmarks.networks.networks_bars import ADAM, BALI, ENSEMBLE, bars, is_better
from bali_benchmarks.networks.networks_summary import Average, difference, of
from bali_benchmarks.performance.measurement import Line, paragraph, table

_EMPTY = "–"
_TITLES = {BALI: "`bali.fit`", ADAM: "Adam", ENSEMBLE: f"{N_NETWORKS} of Adam's"}


def to_markdown(lines: Sequence[Line], scaled: Sequence[Line] = ()) -> str:
    """`scaled` are lines of trainings with a rule scaled."""
    text = ["# Networks of many kinds", "", *_introduction(lines)]
    text += ["", *table(("what is wanted", "how it is", ""), [*bars(lines), scaled_rules_page.bar(scaled)])]
    for title, is_extra in (("The ten", False), ("Others", True)):
        tasks = [name for name, task in TASKS.items() if task.is_extra == is_extra and _seeds(lines, name)]
        if tasks:
            text += ["", f"## {title}", "", "### Negative log-likelihood", "", *_likelihoods(lines, tasks)]
            text += ["", "### Other scores", "", *_others(lines, tasks)]
    if scaled:
        text += ["", "## Scaled rules", "", *scaled_rules_page.section(scaled)]
    left = [name for name in TASKS if not _seeds(lines, name)]
    if left:
        text += ["", *paragraph(f"Not run yet: {', '.join(f'`{name}`' for name in left)}.")]
    return "\n".join(text) + "\n"


def _introduction(lines: Sequence[Line]) -> list[str]:
    threads = sorted({line["threads"] for line in lines})
    rates, decays = (", ".join(f"{number:g}" for number in numbers) for numbers in (RATES, DECAYS))
    return [
        *paragraph(
            "`bali.fit` with nothing set, beside Adam with care. Both start from torch's own initial weights, train on the",
            "same rows and see the same validation rows, a tenth of the training part; test rows are only scored. Written",
            "by `bali-benchmarks networks`.",
        ),
        "",
        *paragraph(
            f"Adam has its best of the rates {rates} by the likelihood of the validation rows. Each is one run with a",
            "constant rate, scored after every epoch, but at least 50 and at most 100 steps, as `bali.fit` is, and stopped",
            f"after {PATIENCE} scores without a gain ({PATIENCE_REGRESSION} for regressions), or {MOST_SCORES} scores in",
            f"all ({MOST_SCORES_REGRESSION} for regressions); at every score, weights and their moving averages (decays",
            f"{decays}) are candidates. More patience might find a later gain. Its noise of a regression is that of the",
            "validation rows. Seconds, of the processor, and steps are those of all three rates.",
        ),
        "",
        *paragraph(
            f"`bali.fit` predicts with {SAMPLES} weight samples. Regressions are scored in standardised units. AUROC: 2,000",
            "test images of the other set (MNIST or Fashion-MNIST) are told from the own test images. Means over seeds ±",
            "their standard error; differences are between the same seeds and rows, and a method is called better where",
            "they are more than a standard error, which a single seed does not have. Threads:",
            f"{', '.join(map(str, threads)) or 'none yet'}.",
        ),
    ]


def _likelihoods(lines: Sequence[Line], tasks: Sequence[str]) -> list[str]:
    header = ("task", "network", "seeds", "`bali.fit`", "Adam", "difference", "better", _TITLES[ENSEMBLE])
    body = []
    for name in tasks:
        change = difference(lines, name, BALI, ADAM, "nll")
        body.append(
            (
                f"`{name}`",
                TASKS[name].title,
                str(_seeds(lines, name)),
                *(_cell(of(lines, name, method, "nll")) for method in (BALI, ADAM)),
                _cell(change, signed=True),
                _better(change),
                _cell(of(lines, name, ENSEMBLE, "nll")),
            )
        )
    return table(header, body)


def _others(lines: Sequence[Line], tasks: Sequence[str]) -> list[str]:
    header = (
        "task",
        "method",
        "accuracy or RMSE",
        "ECE",
        "AUROC, entropy",
        "AUROC, mutual inf.",
        "validation NLL",
        "s",
        "steps",
    )
    body = []
    for name in tasks:
        first = "rmse" if TASKS[name].is_regression else "accuracy"
        keys = (first, "ece", "auroc_entropy", "auroc_mutual_information", "validation_nll")
        for method, title in _TITLES.items():
            if of(lines, name, method, "nll") is None:
                continue
            cells = [_cell(of(lines, name, method, key)) for key in keys]
            counts = [_whole(of(lines, name, method, key)) for key in ("processor_seconds", "steps")]
            body.append((f"`{name}`", title, *cells, *counts))
    return table(header, body)


def _better(change: Average | None) -> str:
    if change is None:
        return _EMPTY
    if change.error is None:
        return f"({_TITLES[BALI if change.mean < 0 else ADAM]})"
    if is_better(change):
        return _TITLES[BALI]
    return _TITLES[ADAM] if change.mean > change.error else "neither"


def _seeds(lines: Sequence[Line], task: str) -> int:
    return len({line["seed"] for line in lines if line["task"] == task})


def _cell(value: Average | None, *, signed: bool = False) -> str:
    return _EMPTY if value is None else value.text(signed=signed)


def _whole(value: Average | None) -> str:
    return _EMPTY if value is None else f"{value.mean:,.0f}"
