"""One loop over the table: what is not in the file is run, every finished run is appended, and the page is written.

Methods that search are run as they are before anything of theirs is scaled, since it is scaled around what they chose.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import joblib
from rich.console import Console

from bali_benchmarks.defaults_study.cases import SETS, Case, Key, Line, cases, key_of, run_case
from bali_benchmarks.defaults_study.figure import draw
from bali_benchmarks.defaults_study.sensitivity_fits import METHODS
from bali_benchmarks.defaults_study.sensitivity_page import IMAGE, to_markdown
from bali_benchmarks.lines import append_line, read_lines
from bali_benchmarks.work_bar import work_bar


def run(
    out: Path,
    page: Path,
    *,
    sets: Sequence[str] = SETS,
    methods: Sequence[str] = tuple(METHODS),
    n_splits: int = 2,
    quick: bool = False,
    n_jobs: int = 1,
    console: Console | None = None,
) -> list[Line]:
    """Run what is missing in `n_jobs` processes; then write the page of all that there is."""
    lines = read_lines(out)
    done = {key_of(line) for line in lines}
    left = [case for case in cases(sets, methods, n_splits, quick=quick) if case.key not in done]
    for line in _with_progress(left, lines, n_jobs, console or Console(stderr=True)):
        lines.append(append_line(out, line))
    write_page(lines, page)
    return lines


def write_page(lines: Sequence[Line], page: Path) -> None:
    """The page, and its picture if there is anything to see in it."""
    page.parent.mkdir(parents=True, exist_ok=True)
    draw(lines, page.parent / IMAGE)
    page.write_text(to_markdown(lines), encoding="utf-8")


def _with_progress(left: Sequence[Case], lines: list[Line], n_jobs: int, console: Console) -> Iterator[Line]:
    """Lines as runs finish."""
    with work_bar("defaults", [case.cost for case in left], console) as advance:
        for part in (_unscaled, _scaled):
            ready = sorted(part(left, lines), key=lambda entry: -entry[0].cost)  # the longest first
            costs = {case.key: case.cost for case, _ in ready}
            parallel = joblib.Parallel(n_jobs=n_jobs, return_as="generator_unordered")
            for line in parallel(joblib.delayed(run_case)(case, chosen) for case, chosen in ready):
                yield line
                advance(costs[key_of(line)])


Ready = tuple[Case, dict[str, float] | None]


def _unscaled(left: Sequence[Case], lines: Sequence[Line]) -> Iterable[Ready]:
    return [(case, None) for case in left if case.hyperparameter is None]


def _scaled(left: Sequence[Case], lines: Sequence[Line]) -> Iterable[Ready]:
    """With what was chosen for the split; where the search itself diverged, there is nothing to scale."""
    chosen: dict[Key, dict[str, float] | None] = {
        key_of(line): line["chosen"] for line in lines if line["hyperparameter"] is None
    }
    for case in left:
        if case.hyperparameter is not None:
            found = chosen[case.default.key]
            if found is not None or not METHODS[case.method].searches:
                yield case, found
