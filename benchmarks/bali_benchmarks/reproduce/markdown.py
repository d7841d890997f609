"""Pieces of a page."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence

from bali_benchmarks.reproduce.summary import Figure

EMPTY = "–"


def wrapped(text: str) -> str:
    return textwrap.fill(text, 125, break_long_words=False, break_on_hyphens=False)


def table(header: Sequence[str], body: Sequence[Sequence[str]]) -> list[str]:
    lines = [f"| {' | '.join(header)} |", "|" + "---|" * len(header)]
    return lines + [f"| {' | '.join(cells)} |" for cells in body]


def cell(figure: Figure | None) -> str:
    return EMPTY if figure is None else str(figure)


def yes_or_no(value: bool) -> str:
    return "yes" if value else "no"
