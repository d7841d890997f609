"""Numbers and names as a reader wants to see them, the pages they stand on, and the tables of the report, as text."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from jinja2 import Environment, PackageLoader, StrictUndefined, Template

from bali.estimators.table_health import TableHealth
from bali.inference.health import format_number
from bali.tables.html_report.holdout import ClassHoldout, DurationHoldout, Holdout, RegressionHoldout
from bali.tables.table_scores import METRICS, MetricText

_NARROW_SPACE = "\u202f"


def number(value: float) -> str:
    """Four significant digits, with thousands set apart; whole numbers in full."""
    if isinstance(value, int):
        return f"{value:,}".replace("-", "−")
    if not math.isfinite(value) or value == 0.0:
        return str(value).replace("-", "−").removesuffix(".0")
    exponent = math.floor(math.log10(abs(value)))
    if not -4 <= exponent < 9:
        return f"{value:.3e}".replace("-", "−")
    return f"{value:,.{max(0, 3 - exponent)}f}".replace("-", "−")


def percent(fraction: float) -> str:
    return f"{100 * fraction:.1f}{_NARROW_SPACE}%".replace("-", "−")


def plural(count: int, noun: str, several: str | None = None) -> str:
    return f"{number(count)} {noun if count == 1 else several or noun + 's'}"


def duration(seconds: float) -> str:
    if seconds < 1.0:
        return "less than a second"
    if seconds < 90.0:
        return plural(round(seconds), "second")
    return plural(round(seconds / 60), "minute") if seconds < 5400.0 else f"{seconds / 3600:.1f} hours"


def setting(value: Any) -> str:
    """A parameter of the estimator."""
    if isinstance(value, list | tuple):
        return ", ".join(str(part) for part in value)
    return "automatic" if value is None else str(value)


def shortened(text: str, length: int = 48) -> str:
    """For names inside a sentence."""
    return text if len(text) <= length else text[: length - 1].rstrip() + "…"


def metric_card(name: str, value: float) -> dict[str, Any]:
    """What one tile of the page shows. Unknown metrics go by their own name."""
    text = METRICS.get(name, MetricText(name, ""))
    shown = percent(value) if text.is_share else number(float(value))
    return {"name": name, "label": text.label, "meaning": text.meaning, "shown": shown, "value": repr(float(value))}


def template(name: str) -> Template:
    """One of the pages in `templates`, which escapes what it is given and knows the words above."""
    environment = Environment(
        loader=PackageLoader("bali.tables.html_report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"number": number, "percent": percent, "duration": duration}
    environment.globals["plural"] = plural
    return environment.get_template(name)


# --- tables -----------------------------------------------------------------------------------------------------------


#: Rows in the table of the most uncertain ones.
N_UNCERTAIN = 12
#: A confusion matrix of more classes than this could not be read; the most frequent confusions are listed instead.
MAX_MATRIX = 20


class Table(NamedTuple):
    heading: list[str]
    rows: list[list[str]]


class ConfusionMatrix(NamedTuple):
    classes: list[str]
    counts: list[list[int]]  # true class by predicted class
    shares: list[list[float]]  # of the true class


def confusion(held: ClassHoldout) -> ConfusionMatrix | Table:
    n = len(held.classes)
    counts = np.bincount(held.y * n + held.predicted, minlength=n * n).reshape(n, n)
    if n <= MAX_MATRIX:
        shares = counts / np.maximum(counts.sum(1, keepdims=True), 1)
        return ConfusionMatrix(held.classes, counts.tolist(), shares.tolist())
    np.fill_diagonal(counts, 0)
    order = np.argsort(-counts, axis=None, kind="stable")[:N_UNCERTAIN]
    pairs = [divmod(int(place), n) for place in order if counts.flat[place]]
    rows = [[held.classes[true], held.classes[said], number(int(counts[true, said]))] for true, said in pairs]
    return Table(["True class", "Predicted instead", "Rows"], rows)


def most_uncertain(held: Holdout) -> Table:
    order = np.argsort(-held.uncertainty, kind="stable")[:N_UNCERTAIN]
    if isinstance(held, RegressionHoldout):
        heading = ["Row", "Predicted", "90 % interval", "True", "Inside?", "Std", "Model's share"]
        return Table(heading, [_regression_row(held, int(i)) for i in order])
    if isinstance(held, DurationHoldout):
        heading = ["Row", "Median", "90 % interval", "Observed"]
        return Table(heading, [_duration_row(held, int(i)) for i in order])
    heading = ["Row", "Predicted", "Next", "True", "Right?", "Entropy", "Model's share"]
    return Table(heading, [_class_row(held, int(i)) for i in order])


def _regression_row(held: RegressionHoldout, i: int) -> list[str]:
    own = held.epistemic[i] / (held.epistemic[i] + held.aleatoric[i])
    mean, truth, std = (number(float(values[i])) for values in (held.mean, held.y, held.std))
    return [str(held.row[i]), mean, _interval(held, i), truth, "yes" if held.inside[i] else "no", std, percent(float(own))]


def _duration_row(held: DurationHoldout, i: int) -> list[str]:
    seen = number(float(held.y[i])) + ("" if held.event[i] else " and not over")
    return [str(held.row[i]), number(float(held.median[i])), _interval(held, i), seen]


def _interval(held: RegressionHoldout | DurationHoldout, i: int) -> str:
    return f"{number(float(held.low[i]))} to {number(float(held.high[i]))}"


def _class_row(held: ClassHoldout, i: int) -> list[str]:
    first, second = np.argsort(-held.probabilities[i], kind="stable")[:2]
    said, next_best = (f"{held.classes[c]} ({percent(float(held.probabilities[i, c]))})" for c in (first, second))
    own = float(held.mutual_information[i] / max(held.entropy[i], 1e-300))
    right = "yes" if held.correct[i] else "no"
    return [str(held.row[i]), said, next_best, held.classes[held.y[i]], right, number(float(held.entropy[i])), percent(own)]


def importance(effects: Sequence[Mapping[str, Any]]) -> Table:
    heading = ["Column", "Log-likelihood it is worth", "Standard error"]
    return Table(heading, [[e["name"], number(float(e["importance"])), number(float(e["error"]))] for e in effects])


def health(found: TableHealth, of_columns: Mapping[str, str]) -> dict[str, Any]:
    """The layers' numbers, what was chosen, and the sentences about what is off."""
    heading = ["Layer", "Size", "Set by data", "Condition"]
    rows = [
        [
            layer.name,
            f"{layer.n_inputs} → {layer.n_outputs}",
            f"{layer.effective_dof:.1f} of {layer.n_inputs}",
            format_number(layer.condition_number),
        ]
        for layer in found.layers
    ]
    chosen = {**of_columns, **found.chosen}
    del chosen["networks"]  # the page has these in words of its own
    return {"table": Table(heading, rows), "problems": found.problems, "chosen": chosen}
