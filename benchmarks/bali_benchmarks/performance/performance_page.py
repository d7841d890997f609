"""docs/performance.md and its pictures, from the lines of all measurements."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import matplotlib

from bali_benchmarks.performance import (
    block_sizes,
    growth_page,
    peers,
    prediction_time,
    processes,
    quality_page,
    stacked_members,
    step_time,
)
from bali_benchmarks.performance.measurement import Bar, Bench, Line, paragraph, table

BENCHES: dict[str, Bench] = {
    bench.name: bench
    for bench in (
        step_time.BENCH,
        stacked_members.BENCH,
        quality_page.BENCH,
        prediction_time.BENCH,
        growth_page.BENCH,
        peers.BENCH,
        processes.BENCH,
        block_sizes.BENCH,
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
            "does hits all of them; memory is measured in a process for each method, and the methods of",
            "the last table ran one",
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
    """The page, and its pictures in the folder `images` beside it."""
    images = page.parent / "images"
    images.mkdir(parents=True, exist_ok=True)
    # Text stays text and names do not change from run to run: small files, and no difference where there is none.
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": "bali"}):
        if own := BENCHES["growth"].own(lines):
            growth_page.draw(own, images)
        if own := BENCHES["quality"].own(lines):
            quality_page.draw(own, images / "performance-quality.svg")
    page.write_text(to_markdown(lines))


def _number(value: float | None, unit: str) -> str:
    return "never" if value is None else f"{value:.2f} {unit}".rstrip()
