"""The tables of the report, as headings and cells of text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from bali.estimators.table_health import TableHealth
from bali.inference.health import format_number
from bali.tables.html_report.holdout import ClassHoldout, DurationHoldout, Holdout, RegressionHoldout
from bali.tables.html_report.wording import number, percent

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
    interval = f"{number(float(held.low[i]))} to {number(float(held.high[i]))}"
    mean, truth, std = (number(float(values[i])) for values in (held.mean, held.y, held.std))
    return [str(held.row[i]), mean, interval, truth, "yes" if held.inside[i] else "no", std, percent(float(own))]


def _duration_row(held: DurationHoldout, i: int) -> list[str]:
    interval = f"{number(float(held.low[i]))} to {number(float(held.high[i]))}"
    seen = number(float(held.y[i])) + ("" if held.event[i] else " and not over")
    return [str(held.row[i]), number(float(held.median[i])), interval, seen]


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
