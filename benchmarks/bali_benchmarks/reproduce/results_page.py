"""The page of the reproduction: our figures beside the paper's, with verdicts computed from both."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from bali_benchmarks.reproduce import (
    classification_page,
    readings_page,
    regression_page,
    step_costs,
    synthetic_page,
    verdicts,
)
from bali_benchmarks.reproduce.job import Line
from bali_benchmarks.reproduce.markdown import table, wrapped
from bali_benchmarks.reproduce.summary import ALLOWED

Every = Mapping[str, Sequence[Line]]
#: Sections in their order, each with the experiment whose lines it needs; it is given those of all experiments.
SECTIONS: list[tuple[str, Callable[[Every], list[str]]]] = [
    ("synthetic", synthetic_page.synthetic),
    ("bbb-synthetic", synthetic_page.bayes_by_backprop),
    ("local-reparam", synthetic_page.local_reparametrisation),
    ("regression", regression_page.section),
    ("readings", readings_page.section),
    ("classification", classification_page.benchmark),
    ("classification", classification_page.convergence),
    ("classification", classification_page.local_reparametrisation),
    ("classification", classification_page.out_of_distribution),
    ("steps", step_costs.section),
]


def to_markdown(rows: Every, *, quick: bool = False) -> str:
    """Sections of the experiments that have been run; it says nothing that is not in the rows or in the paper."""
    opening = verdicts.section(rows)
    lines = ["# The paper's experiments", "", *_introduction(quick), *(["", *opening] if opening else [])]
    for name, section in SECTIONS:
        written = section(rows) if rows.get(name) else []
        lines += ["", *written] if written else []
    return "\n".join([*lines, "", "## Time", "", *_times(rows)]) + "\n"


def _introduction(quick: bool) -> list[str]:
    text = (
        "Written by `bali-benchmarks reproduce`. Figures are means ± standard errors over splits or seeds. A verdict "
        "compares ours "
        f"with the paper's: `alike` within {ALLOWED:.0f} combined standard errors (the paper's rounding included), "
        "otherwise by how many of them ours is better or worse. Differences are paired: between methods, split by split."
    )
    look = "**A quick run: few steps, rows and splits. It shows that everything works; its figures mean nothing else.**"
    return [wrapped(text), *(["", look] if quick else [])]


def _times(every: Every) -> list[str]:
    body = []
    for name, rows in every.items():
        # Lines of splits that were trained together share their seconds.
        jobs = {(row["set"], row["method"], row["job_split"], row["share"]): row["seconds"] for row in rows}
        body += [[name, f"{sum(jobs.values()) / 60:.1f}"]] if jobs else []
    return table(["experiment", "minutes of one core"], body)
