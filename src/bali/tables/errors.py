"""The one error of this package, and how names are quoted in its messages."""

from __future__ import annotations

from collections.abc import Iterable


class TableError(ValueError):
    """A table cannot be used as it is; the message is one line and says what to do about it."""


def quoted(names: Iterable[object], limit: int = 5) -> str:
    """'a', 'b', 'c' and 4 more"""
    shown = [repr(str(name)) for name in names]
    more = len(shown) - limit
    return ", ".join(shown[:limit]) + (f" and {more} more" if more > 0 else "")


def plural(count: int, noun: str) -> str:
    """1 row, 1,234 rows"""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def drop_options(names: Iterable[object]) -> str:
    """--drop a --drop b: the remedy for columns that cannot be used."""
    return " ".join(f"--drop {shell_word(name)}" for name in names)


def shell_word(name: object) -> str:
    """A name as it is typed on a command line."""
    name = str(name)
    return name if name.replace("_", "").replace("-", "").isalnum() else f'"{name}"'
