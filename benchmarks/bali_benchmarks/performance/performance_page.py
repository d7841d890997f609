"""docs/performance.md, from the lines of all measurements."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from bali_benchmarks.performance import (
    arrival,
    memory,
    peers,
    prediction_time,
    processes,
    stacked_members,
    step_time,
    widths,
)
from bali_benchmarks.performance.measurement import Bar, Bench, Line, paragraph, table

BENCHES: dict[str, Bench] = {
    bench.name: bench
    for bench in (
        step_time.BENCH,
        widths.BENCH,
        memory.BENCH,
        arrival.BENCH,
        prediction_time.BENCH,
        stacked_members.BENCH,
        peers.BENCH,
        processes.BENCH,
    )
}


def all_bars(lines: Sequence[Line]) -> list[tuple[str, Bar]]:
    """With the name of the measurement each belongs to."""
    return [(name, bar) for name, bench in BENCHES.items() if (own := bench.own(lines)) for bar in bench.bars(own)]


def to_markdown(lines: Sequence[Line]) -> str:
    page = [
        "# Performance",
        "",
        *paragraph(
            "Ratios of times are measured within one run, in which the competitors take turns, so that",
            "whatever else the machine",
            'does hits all of them; the methods under "Other methods" ran one',
            f"after another. Written by `bali-benchmarks performance`: {', '.join(BENCHES)}.",
        ),
        "",
    ]
    rows = [
        (f"`{name}`", bar.what, _number(bar.measured, bar.unit), f"≤ {_number(bar.limit, bar.unit)}", bar.verdict)
        for name, bar in all_bars(lines)
    ]
    page += (
        [*table(("measurement", "what", "measured", "bar", "verdict"), rows), ""]
        if rows
        else ["Nothing was measured yet.", ""]
    )
    for bench in BENCHES.values():
        if own := bench.own(lines):
            page += [f"## {bench.title}", "", *bench.section(own), ""]
    return "\n".join(page[:-1]) + "\n"


def write(lines: Sequence[Line], page: Path) -> None:
    page.write_text(to_markdown(lines))


def _number(value: float | None, unit: str) -> str:
    return "never" if value is None else f"{value:.2f} {unit}".rstrip()
