"""What each reading of the paper is worth, on the page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from bali_benchmarks.reproduce import paper_figures
from bali_benchmarks.reproduce.job import Line
from bali_benchmarks.reproduce.markdown import EMPTY, cell, table, wrapped
from bali_benchmarks.reproduce.readings import N_SPLITS, READINGS, SETS
from bali_benchmarks.reproduce.summary import (
    ALLOWED,
    METRICS,
    figure,
    gap,
    length,
    longest,
    of_one_length,
    paired_difference,
)

SCORES = ("rmse", "log_likelihood")


def section(every: Mapping[str, Sequence[Line]]) -> list[str]:
    rows = every["readings"]
    sets = [name for name in SETS if any(row["set"] == name for row in rows)]
    lengths = ", ".join(f"{name} {length(_longest(rows, name))}" for name in sets)
    text = (
        "What the paper leaves open, read otherwise in one point at a time. "
        f"{N_SPLITS} published and {N_SPLITS} random splits, trained side by side from one seed; of the paper's steps, "
        f"the least: {lengths}. Shown is the paired difference to the first row, whose figures stand in it, over all "
        "splits: a positive one of the error is worse, one of the log-likelihood better. `rows` counts the figures of the "
        f"paper that are met within {ALLOWED:.0f} combined standard errors on the random splits."
    )
    lines = ["## Where ours differs: readings of the paper", "", wrapped(text), ""]
    header = ["reading", *(f"{name}, {METRICS[metric][0]}" for name in sets for metric in SCORES), "rows"]
    body, met = [], {}
    for reading in READINGS:
        cells = []
        for name in sets:
            for metric in SCORES:
                cells.append(_worth(rows, name, reading, metric))
        if any(value != EMPTY for value in cells):
            met[reading] = [_is_met(rows, name, reading, metric) for name in sets for metric in SCORES]
            known = [value for value in met[reading] if value is not None]
            body.append([READINGS[reading].title, *cells, f"{sum(known)} of {len(known)}"])
    lines += table(header, body)
    return [*lines, "", wrapped(_conclusion(met))] if met else lines


def _longest(rows: Sequence[Line], name: str) -> list[Line]:
    return [row for row in longest(rows) if row["set"] == name]


def _worth(rows: Sequence[Line], name: str, reading: str, metric: str) -> str:
    """Of runs with as many steps as those it is compared with."""
    if reading == "base":
        own = [row for row in _longest(rows, name) if row["method"] == reading]
        return cell(figure([row[metric] for row in own]))
    return cell(paired_difference(of_one_length(rows, name, (reading, "base")), name, metric, reading, "base"))


def _is_met(rows: Sequence[Line], name: str, reading: str, metric: str) -> bool | None:
    random = [row for row in _longest(rows, name) if row["method"] == reading and not row["published"]]
    ours = figure([row[metric] for row in random])
    return None if ours is None else abs(gap(ours, paper_figures.REGRESSION[metric][name], metric)) <= ALLOWED


def _conclusion(met: Mapping[str, Sequence[bool | None]]) -> str:
    counts = {reading: sum(bool(value) for value in values) for reading, values in met.items()}
    most = max(counts.values())
    best = [READINGS[reading].title for reading, count in counts.items() if count == most]
    never = [index for index in range(len(next(iter(met.values())))) if not any(values[index] for values in met.values())]
    text = f"Most figures, {most}, are met by: {'; '.join(best)}." if len(met) > 1 else ""
    if len(met) < len(READINGS):
        text += f" Not run yet: {len(READINGS) - len(met)} of {len(READINGS)} readings."
    return (text + (f" {len(never)} of the figures are met under no reading tried." if never else "")).strip()
