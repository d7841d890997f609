"""What the defaults have to show, judged by the lines: met, missed or not run."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from bali_benchmarks.datasets.registry import ENTRIES
from bali_benchmarks.rows_time import BARS, PREDICT_BAR
from bali_benchmarks.tables_study.comparison import Comparison, Line, mean_ranks
from bali_benchmarks.tables_study.table_methods import METHODS
from bali_benchmarks.tables_study.table_sets import FRIEDMAN, TABLES

#: At least, at most: log-likelihood and RMSE on published splits.
PUBLISHED = {
    "yacht": (0.2, 0.45),
    "concrete": (-2.45, 3.95),
    "energy": (-0.15, 0.36),
    "redwine": (-0.89, 0.59),
    "kin8nm": (1.34, 0.063),
    "powerplant": (-2.50, 3.15),
    "protein": (-2.35, 3.36),
}
#: Negative log-likelihood and RMSE at most, of standardised targets and of a Gaussian with the prediction's mean and std.
STANDARDISED = {"airfoil": (-0.93, 0.125), "bikesharing": (-0.74, 0.21)}
CATBOOST_SETS = ("spam", "telescope", "cdc_diabetes")
NEAR_BEST = 2 / 3
N_TABLES = sum(table.kind != "timed" for table in TABLES.values())
MOST_NGBOOST_TIMES = 2.0
NOT_RUN = "not run"


@dataclass(frozen=True)
class Bar:
    what: str
    measured: str
    verdict: str


def judged(what: str, measured: str, met: bool, complete: bool = True) -> Bar:
    """`complete` if all was run that the bar is about."""
    return Bar(what, measured, ("met" if met else "**missed**") + ("" if complete else ", so far"))


def bars(rows: list[Line], found: list[Comparison]) -> list[Bar]:
    """`rows` for what is only timed."""
    named = {c.name: c for c in found if "BALI" in c.lines}
    compared = [c for c in found if c.is_comparison]
    return [
        *(_published(rows, name) for name in PUBLISHED),
        *(_ahead(compared, score) for score in ("log-likelihood", "CRPS / Brier")),
        _near_best(compared),
        *(_catboost(named.get(name), name) for name in CATBOOST_SETS),
        _seconds(rows),
    ]


def _published(rows: list[Line], name: str) -> Bar:
    """Of all of BALI's lines, whatever the others have."""
    least, most = PUBLISHED[name]
    what = f"{name}: log-likelihood at least {least:g}, RMSE at most {most:g}"
    own = [row for row in rows if (row["set"], row["method"]) == (name, "BALI") and "failed" not in row]
    if not own:
        return Bar(what, "–", NOT_RUN)
    likelihood, rmse = (float(np.mean([row[key] for row in own])) for key in ("log_likelihood", "rmse"))
    in_all = ENTRIES[name].n_splits
    measured = f"{likelihood:.3f}, {rmse:.3f} on {len(own)} of {in_all} published splits"
    return judged(what, measured, likelihood >= least and rmse <= most, len(own) == in_all)


def _ahead(found: list[Comparison], score: str) -> Bar:
    """Of every peer, over the tables that it has."""
    what = f"ahead of every method in mean rank by {score}"
    behind, peers = [], []
    for method in METHODS:
        own = [c for c in found if method in c.lines]
        if own and method != "BALI":
            rank, ours = mean_ranks(own, method, score)
            peers.append(method)
            behind += [f"behind {method} ({ours:.2f}, {rank:.2f})"] if ours >= rank else []
    if not peers:
        return Bar(what, "–", NOT_RUN)
    measured = f"{', '.join(behind) or f'ahead of all {len(peers)}'} on {len(found)} of {N_TABLES} tables"
    return judged(what, measured, not behind, len(found) == N_TABLES)


def _near_best(found: list[Comparison]) -> Bar:
    what = "within a standard error of the best in RMSE or accuracy on two thirds of the tables"
    if not found:
        return Bar(what, "–", NOT_RUN)
    near = sum(c.is_near_best("BALI") for c in found)
    return judged(what, f"{near} of {len(found)}", near >= NEAR_BEST * len(found), len(found) == N_TABLES)


def _catboost(c: Comparison | None, name: str) -> Bar:
    what = f"{name}: log-likelihood better than CatBoost's"
    if c is None or "CatBoost" not in c.lines:
        return Bar(what, "–", NOT_RUN)
    ours, theirs = c.mean("BALI", "log_likelihood"), c.mean("CatBoost", "log_likelihood")
    return judged(what, f"{ours:.4f}, {theirs:.4f}", ours > theirs)


def _seconds(rows: list[Line]) -> Bar:
    what = f"{FRIEDMAN}: fit in at most twice NGBoost's time"
    taken = {
        method: [r["fit_seconds"] for r in rows if (r["set"], r["method"]) == (FRIEDMAN, method) and "failed" not in r]
        for method in ("BALI", "NGBoost")
    }
    if not all(taken.values()):
        return Bar(what, "–", NOT_RUN)
    ours, theirs = (float(np.mean(own)) for own in taken.values())
    return judged(what, f"{ours:.1f} s, {theirs:.1f} s", ours <= MOST_NGBOOST_TIMES * theirs)


def bars_of_other_studies(likelihoods: list[Line], times: list[Line]) -> list[Bar]:
    """From `bali-benchmarks likelihoods` (five seeds of one split) and `bali-benchmarks rows`."""
    found = []
    for name, (nll, rmse) in STANDARDISED.items():
        own = [line for line in likelihoods if (line["set"], line["method"]) == (name, "BALI")]
        what = f"{name}, as published: NLL at most {nll:g}, RMSE at most {rmse:g}"
        if own:
            ours, error, density = (np.mean([r[k] for r in own]) for k in ("nll_gaussian", "rmse", "nll_density"))
            measured = f"{ours:.3f}, {error:.3f} over {len(own)} seeds (own density {density:.3f})"
            found.append(judged(what, measured, bool(ours <= nll and error <= rmse)))
        else:
            found.append(Bar(what, "–", NOT_RUN))
    seconds = {line["rows"]: line["fit_seconds"] for line in times}
    for n, most in BARS.items():
        what = f"a fit of {n:,} × 10 in at most {most:.0f} s"
        found.append(judged(what, f"{seconds[n]:.1f} s", seconds[n] <= most) if n in seconds else Bar(what, "–", NOT_RUN))
    predictions = [line["predict_seconds"] for line in times if line["predict_rows"] == 10_000]
    what = f"a prediction of 10,000 rows under {PREDICT_BAR:.0f} s"
    slowest = max(predictions, default=0.0)
    found.append(judged(what, f"{slowest:.2f} s", slowest < PREDICT_BAR) if predictions else Bar(what, "–", NOT_RUN))
    return [*found, Bar("standard deviation of the log-likelihood over ten seeds at most 0.05", "–", NOT_RUN)]
