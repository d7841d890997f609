"""What a measurement is: jobs that leave lines, and what the page says of these lines."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

Line = dict[str, Any]


@dataclass(frozen=True)
class Measurement:
    """A part of a measurement that is run as a whole. Its key is in all of its lines, and tells whether it was run."""

    key: dict[str, Any]
    run: Callable[[], list[Line]]

    def is_done(self, lines: Iterable[Line]) -> bool:
        return any(self.key.items() <= {k: v for k, v in line.items() if k in self.key}.items() for line in lines)


@dataclass(frozen=True)
class Bar:
    """Something measured that is to stay at or below a limit; None where it was never reached."""

    what: str
    measured: float | None
    limit: float
    unit: str = ""

    @property
    def is_met(self) -> bool:
        return self.measured is not None and self.measured <= self.limit

    @property
    def verdict(self) -> str:
        return "met" if self.is_met else "missed"


@dataclass(frozen=True)
class Bench:
    name: str
    title: str
    jobs: Callable[[], list[Measurement]]
    section: Callable[[Sequence[Line]], list[str]]  # text and tables in Markdown, from at least one line
    bars: Callable[[Sequence[Line]], list[Bar]]
    threads: int | None = None  # unless the user says otherwise; None is torch's own choice

    def own(self, lines: Iterable[Line]) -> list[Line]:
        return [line for line in lines if line["bench"] == self.name]


def paragraph(*sentences: str) -> list[str]:
    """Text in lines of a length to read."""
    return textwrap.wrap(" ".join(sentences), 120, break_long_words=False, break_on_hyphens=False)


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """A table in Markdown."""
    return [f"| {' | '.join(cells)} |" for cells in (header, ["---"] * len(header), *rows)]


def median_line(lines: Sequence[Line], key: str) -> str:
    """How the figures of a section came about, in one sentence."""
    rounds, threads = min(line[key] for line in lines), sorted({line["threads"] for line in lines})
    return f"Medians of {rounds} interleaved rounds; threads: {', '.join(map(str, threads))}."
