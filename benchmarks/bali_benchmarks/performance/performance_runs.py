"""Run measurements that are not in the file yet, and write the page anew."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from rich.progress import track

from bali_benchmarks.lines import append_line, read_lines, write_lines
from bali_benchmarks.performance import performance_page as pages
from bali_benchmarks.performance.measurement import Bench, Line, Measurement


def run(
    name: str,
    out: Path,
    page: Path,
    *,
    threads: int | None = None,
    again: bool = False,
    jobs: Sequence[Measurement] | None = None,
) -> list[Line]:
    """The lines of this measurement. With `again`, those in the file are forgotten first."""
    bench = pages.BENCHES[name]
    lines = read_lines(out)
    if again:
        lines = [line for line in lines if line["bench"] != name]
        write_lines(out, lines)
    with thread_count(bench.threads if threads is None else threads):
        for job in track(_left(bench, lines, jobs), description=name, transient=True):
            for line in job.run():
                lines.append(append_line(out, {"bench": name} | job.key | rounded(line)))
    page.parent.mkdir(parents=True, exist_ok=True)
    pages.write(lines, page)
    return bench.own(lines)


def _left(bench: Bench, lines: Sequence[Line], jobs: Sequence[Measurement] | None) -> list[Measurement]:
    every = bench.jobs() if jobs is None else jobs
    return [job for job in every if not job.is_done(bench.own(lines))]


def rounded(value: Any) -> Any:
    """Numbers with the five digits that a measurement is worth at most, in lists and dictionaries too."""
    if isinstance(value, dict):
        return {key: rounded(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [rounded(entry) for entry in value]
    return float(f"{value:.5g}") if isinstance(value, float) else value


@contextmanager
def thread_count(threads: int | None) -> Iterator[None]:
    """So many threads for torch, or as many as it has; afterwards as before."""
    before = torch.get_num_threads()
    torch.set_num_threads(before if threads is None else threads)
    try:
        yield
    finally:
        torch.set_num_threads(before)
