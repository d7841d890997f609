"""The one error of this package, and how names and cells are quoted in its messages."""

from __future__ import annotations

from collections.abc import Iterable

#: Of a name or a cell, a message shows at most so many characters.
LONGEST_SHOWN = 60


class TableError(ValueError):
    """A table cannot be used as it is; the message is one line and says what to do about it."""


def shown(value: object) -> str:
    """'a name or a cell', cut where it is very long."""
    text = str(value)
    return repr(text) if len(text) <= LONGEST_SHOWN else f"{text[:LONGEST_SHOWN]!r}… ({len(text):,} characters)"


def quoted(names: Iterable[object], limit: int = 5) -> str:
    """'a', 'b', 'c' and 4 more"""
    listed = list(names)
    more = len(listed) - limit
    return ", ".join(shown(name) for name in listed[:limit]) + (f" and {more} more" if more > 0 else "")


def plural(count: int, noun: str) -> str:
    """1 row, 1,234 rows"""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def drop_options(names: Iterable[object]) -> str:
    """--drop a --drop b: the remedy for columns that cannot be used."""
    listed = list(names)
    options = [f"--drop {shell_word(name)}" for name in listed[:20]]
    return " ".join(options) + (" and so on" if len(listed) > len(options) else "")


def shell_word(name: object) -> str:
    """A name as it is typed on a command line."""
    name = str(name)
    if len(name) > LONGEST_SHOWN:
        name = f"{name[:LONGEST_SHOWN]}…"
    return name if name.replace("_", "").replace("-", "").isalnum() else f'"{name}"'
