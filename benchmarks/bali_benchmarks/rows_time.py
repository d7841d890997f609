"""Time to fit and predict with the defaults, against the number of rows."""

from __future__ import annotations

import time
import warnings
from pathlib import Path
from typing import Any

import torch
from rich.progress import track
from sklearn.datasets import make_friedman1
from sklearn.exceptions import ConvergenceWarning

import bali
from bali_benchmarks.lines import append_line, read_lines

#: Rows, and the seconds that a fit may take on two cores.
BARS = {300: 5.0, 1_000: 10.0, 10_000: 25.0, 100_000: 60.0, 1_000_000: 180.0}
#: Seconds for predictions of 10,000 rows.
PREDICT_BAR = 1.0


def run_size(n: int) -> dict[str, Any]:
    """Friedman's first problem: ten columns, five of them without effect, unit noise."""
    X, y = make_friedman1(n, n_features=10, noise=1.0, random_state=0)
    start, processor = time.perf_counter(), time.process_time()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        model = bali.BALIRegressor(random_state=0).fit(X, y)
    fitted, processor = time.perf_counter(), time.process_time() - processor
    model.predict(X[:10_000], return_std=True)
    predicted = time.perf_counter()
    X_new, y_new = make_friedman1(2000, n_features=10, noise=1.0, random_state=1)
    error = float(((model.predict(X_new) - y_new) ** 2).mean() ** 0.5)
    return {
        "rows": n,
        "fit_seconds": round(fitted - start, 2),
        "processor_seconds": round(processor, 2),
        "predict_seconds": round(predicted - fitted, 2),
        "predict_rows": min(n, 10_000),
        "steps": model.n_iter_,
        "rmse": round(error, 4),
        "threads": torch.get_num_threads(),
    }


def run(out: Path, page: Path) -> None:
    """Run what is not in the file yet; then write the page."""
    results = read_lines(out)
    done = {row["rows"] for row in results}
    for n in track([n for n in BARS if n not in done], description="rows"):
        results.append(append_line(out, run_size(n)))
    page.write_text(to_markdown(results))


def to_markdown(results: list[dict[str, Any]]) -> str:
    lines = [
        "# Time against rows",
        "",
        "`BALIRegressor()` with its defaults on Friedman's first problem (ten columns, unit noise: no model's RMSE on new",
        "rows is below 1). A step takes in 128 or 256 rows, and the number of steps grows with the cube root of the rows.",
        "Bars are for two cores; a line with one thread had one, and one whose processor seconds are far fewer shared it.",
        "Written by `bali-benchmarks rows`.",
        "",
        "| rows | fit, s | at most | processor, s | threads | steps | µs per row | predict, s | of rows | RMSE, new rows |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for r in sorted(results, key=lambda r: int(r["rows"])):
        per_row = 1e6 * r["fit_seconds"] / r["rows"]
        processor = f"{r['processor_seconds']:.1f}" if "processor_seconds" in r else "–"
        lines.append(
            f"| {r['rows']:,} | {r['fit_seconds']:.1f} | {BARS[r['rows']]:g} | {processor} | {r['threads']} | {r['steps']} "
            f"| {per_row:,.0f} | {r['predict_seconds']:.2f} | {r['predict_rows']:,} | {r['rmse']:.3f} |"
        )
    missed = [f"a fit of {r['rows']:,} rows" for r in results if r["fit_seconds"] > BARS[r["rows"]]]
    missed += [f"predictions of {r['predict_rows']:,}" for r in results if r["predict_seconds"] > PREDICT_BAR]
    if results:
        lines += ["", f"Missed: {', '.join(missed)}." if missed else "All bars are met."]
    return "\n".join(lines) + "\n"
