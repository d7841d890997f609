"""Figures of the lines, table by table: means over the folds that all methods of a table have, and ranks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bali_benchmarks.tables_study.table_methods import METHODS
from bali_benchmarks.tables_study.table_sets import TABLES

Line = dict[str, Any]
#: What methods are compared by: its key in regressions and in classifications, and whether more is better there.
RANKED = {
    "log-likelihood": (("log_likelihood", 1), ("log_likelihood", 1)),
    "CRPS / Brier": (("crps", -1), ("brier", -1)),
    "RMSE / accuracy": (("rmse", -1), ("accuracy", 1)),
}


@dataclass(frozen=True)
class Comparison:
    """One table: for every method that has them, the lines of the same folds."""

    name: str
    lines: dict[str, list[Line]]
    failed: dict[str, str]

    @property
    def classification(self) -> bool:
        return TABLES[self.name].classification

    @property
    def is_comparison(self) -> bool:
        """Of BALI with somebody else."""
        return "BALI" in self.lines and len(self.lines) > 1

    def values(self, method: str, key: str) -> NDArray[np.float64]:
        return np.array([line[key] for line in self.lines[method]])

    def mean(self, method: str, key: str) -> float:
        return float(self.values(method, key).mean())

    def seconds(self, method: str) -> float | None:
        """Of processor time, where lines have it."""
        found = [line["core_seconds"] for line in self.lines[method] if "core_seconds" in line]
        return float(np.mean(found)) if found else None

    def key(self, score: str) -> tuple[str, int]:
        return RANKED[score][self.classification]

    def ranks(self, score: str) -> dict[str, float]:
        """1 is the best; methods with the same figure share the mean of their places."""
        key, sign = self.key(score)
        own = {method: sign * self.mean(method, key) for method in self.lines}
        return {
            method: 1.0 + sum(other > value for other in own.values()) + (sum(v == value for v in own.values()) - 1) / 2
            for method, value in own.items()
        }

    def is_near_best(self, method: str) -> bool:
        """In RMSE or accuracy within a standard error (over test rows) of the method that is best."""
        key, sign = self.key("RMSE / accuracy")
        best = max(self.lines, key=lambda m: sign * self.mean(m, key))
        error = float(np.sqrt(np.square(self.values(best, f"{key}_se")).sum())) / len(self.lines[best])
        return sign * (self.mean(best, key) - self.mean(method, key)) <= error


def comparisons(rows: list[Line]) -> list[Comparison]:
    """Of the tables that have lines. What is only timed is not among them."""
    found = []
    for name, table in TABLES.items():
        own = [row for row in rows if row["set"] == name and row["method"] in METHODS]
        by_method = {m: {r["fold"]: r for r in own if r["method"] == m and "failed" not in r} for m in METHODS}
        by_method = {method: lines for method, lines in by_method.items() if lines}
        failed = {r["method"]: r["failed"] for r in own if "failed" in r and r["method"] not in by_method}
        if table.kind != "timed" and by_method:
            folds = sorted(set.intersection(*(set(lines) for lines in by_method.values())))
            lines = {method: [lines[fold] for fold in folds] for method, lines in by_method.items()}
            found += [Comparison(name, lines, failed)] if folds else []
    return found


def mean_ranks(own: list[Comparison], method: str, score: str) -> tuple[float, float]:
    """The method's over its tables, and BALI's over the same."""
    ranks = [c.ranks(score) for c in own]
    return float(np.mean([r[method] for r in ranks])), float(np.mean([r["BALI"] for r in ranks]))
