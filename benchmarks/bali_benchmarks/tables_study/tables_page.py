"""docs/tables.md: who is where, the bars, and every table."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bali_benchmarks.tables_study.comparison import RANKED, Comparison, Line, comparisons, mean_ranks
from bali_benchmarks.tables_study.densities import HELD_OUT
from bali_benchmarks.tables_study.made_tables import MADE, N_TEST
from bali_benchmarks.tables_study.table_methods import METHODS
from bali_benchmarks.tables_study.table_sets import MOST_ROWS, TABLES
from bali_benchmarks.tables_study.tables_bars import N_TABLES, Bar, bars

KINDS = {
    "bundled": "scikit-learn's own tables, up to five folds.",
    "made": f"Drawn from laws of very different kinds, {N_TEST:,} fresh rows for the test, up to three draws.",
    "published": "The paper's regressions, published splits (90 % to learn from).",
    "random": "The published split of airfoil and bikesharing, then random ones; random splits of the others (80 %). "
    f"`cdc_diabetes` has {MOST_ROWS:,} rows to learn from and {MOST_ROWS:,} for the test, of 253,680.",
}


def to_markdown(rows: list[Line], other_bars: Sequence[Bar] = ()) -> str:
    """`other_bars` are judged by the lines of other studies."""
    found = comparisons(rows)
    lines = [
        "# Defaults on tables",
        "",
        "`BALIRegressor()` and `BALIClassifier()` with nothing set, beside what else a user would reach for with its",
        "defaults, on the same splits, in one run. Perceptrons that see the columns as they are, others that see them in",
        "bins, as waves, or beside what near rows say are trained side by side; held-out rows tell which are kept.",
        "[Defaults](defaults.md) has the rules, decisions [19](decisions/0019-tables-by-the-joint-update.md) and",
        "[31](decisions/0031-near-rows.md) the reasons. Written by `bali-benchmarks tables`; every fit has one core.",
        "",
        *_ranks(found),
        *_bars([*bars(rows, found), *other_bars]),
        *_methods(),
    ]
    for kind, what in KINDS.items():
        own = [comparison for comparison in found if TABLES[comparison.name].kind == kind]
        if own:
            lines += ["", f"## {kind.capitalize()} tables", "", what]
            lines += [line for comparison in own for line in _table(comparison)]
    return "\n".join(lines) + "\n"


def _ranks(found: list[Comparison]) -> list[str]:
    """Ranks are among the methods that a table has, so BALI's are given over each method's own tables."""
    lines = ["## Who is where", ""]
    with_bali = [c for c in found if c.is_comparison]
    lines += [
        f"{len(with_bali)} of {N_TABLES} tables; means over the splits that all methods of a table have. Mean rank (1 is",
        "the best) of a method on its tables and, behind the stroke, BALI's on the same ones. Of classifications the Brier",
        "score stands for the CRPS. The last columns: on how many of these tables BALI has the better log-likelihood, and",
        "BALI's seconds over the method's (geometric mean). Seconds are of processor time, for fit and predictions.",
        "",
        f"| method | tables | {' | '.join(RANKED)} | BALI is ahead | BALI's seconds |",
        "|---|---|---|---|---|---|---|",
    ]
    for method in METHODS:
        own = [c for c in with_bali if method in c.lines]
        if not own:
            lines.append(f"| {method} | 0 | – | – | – | – | – |")
            continue
        cells = []
        for score in RANKED:
            rank, ours = mean_ranks(own, method, score)
            cells.append(f"{rank:.2f}" if method == "BALI" else f"{rank:.2f} / {ours:.2f}")
        if method == "BALI":
            cells += ["–", "–"]
        else:
            ahead = sum(c.mean("BALI", "log_likelihood") > c.mean(method, "log_likelihood") for c in own)
            cells += [f"{ahead} of {len(own)}", _times(own, method)]
        lines.append(f"| {method} | {len(own)} | {' | '.join(cells)} |")
    behind = [f"{c.name} ({_behind(c)})" for c in with_bali if c.ranks("log-likelihood")["BALI"] > 1.0]
    first = len(with_bali) - len(behind)
    lines += ["", f"BALI's log-likelihood is the best on {first} of {len(with_bali)} tables."]
    return lines + ([f"Elsewhere the best is ahead: {'; '.join(behind)}."] if behind else [])


def _times(own: list[Comparison], method: str) -> str:
    """How many times the method's processor time BALI takes, over the tables where both have one."""
    pairs = [(c.seconds("BALI"), c.seconds(method)) for c in own]
    logs = [np.log(ours / max(theirs, 0.01)) for ours, theirs in pairs if ours is not None and theirs is not None]
    return f"× {np.exp(np.mean(logs)):.3g}" if logs else "–"


def _core_seconds(c: Comparison, method: str) -> str:
    found = c.seconds(method)
    return "–" if found is None else f"{found:.1f}"


def _behind(c: Comparison) -> str:
    best = max(c.lines, key=lambda m: c.mean(m, "log_likelihood"))
    return f"{best}, by {c.mean(best, 'log_likelihood') - c.mean('BALI', 'log_likelihood'):.3f} nats"


def _bars(found: list[Bar]) -> list[str]:
    rows = [f"| {bar.what} | {bar.measured} | {bar.verdict} |" for bar in found]
    return ["", "## Bars", "", "| bar | measured | verdict |", "|---|---|---|", *rows]


def _methods() -> list[str]:
    lines = ["", "## Methods and their distributions", ""]
    lines += [f"- **{method.name}**: {method.what}." for method in METHODS.values()]
    return [
        *lines,
        "",
        f"Where rows are held out, they are {100 * HELD_OUT:.0f} % of the training rows and are not learnt from afterwards.",
        "Columns are standardised for the linear models, Gaussian processes, the deep ensemble and bde (its targets too).",
    ]


def _table(c: Comparison) -> list[str]:
    line = next(iter(c.lines.values()))[0]
    keys = ("accuracy", "brier", "ece") if c.classification else ("rmse", "crps", "coverage_90")
    names = ("accuracy", "Brier", "ECE") if c.classification else ("RMSE", "CRPS", "coverage of 90 %")
    n = len(next(iter(c.lines.values())))
    what = f" ({MADE[c.name].what})" if c.name in MADE else ""
    lines = [
        "",
        f"### {c.name}",
        "",
        f"{line['rows']:,} rows, {line['columns']} columns{what}; {n} split{'s' if n > 1 else ''}.",
        "",
        f"| method | log-likelihood | {' | '.join(names)} | seconds |",
        "|---|---|---|---|---|---|",
    ]
    for method in METHODS:
        if method in c.lines:
            cells = [with_error(c.values(method, key)) for key in ("log_likelihood", *keys)]
            lines.append(f"| {method} | {' | '.join(cells)} | {_core_seconds(c, method)} |")
        elif method in c.failed:
            lines.append(f"| {method} | {c.failed[method].replace('|', '/')} | – | – | – | – |")
    return lines


def with_error(values: NDArray[Any]) -> str:
    """Mean ± standard error over splits; as many digits as say something."""
    error = float(values.std(ddof=1)) / len(values) ** 0.5 if len(values) > 1 else None
    mean = float(values.mean())
    digits = max(0, 3 - max(0, int(np.floor(np.log10(abs(mean) or 1.0)))))
    return f"{mean:.{digits}f}" + ("" if error is None else f" ± {error:.{digits}f}")
