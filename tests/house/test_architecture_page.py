"""docs/architecture.md and CONTRIBUTING.md name files that exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PLACES = [ROOT / "src" / "bali", ROOT / "benchmarks" / "bali_benchmarks", ROOT / "src", ROOT]
#: Named because there is to be none.
NOT_WANTED = {"utils.py"}


def exists(name: str) -> bool:
    """With a folder, from the library, the evidence or the checkout; without one, anywhere in the library or the tests."""
    if "/" in name:
        return any((place / name).exists() for place in PLACES)
    return any(any(place.rglob(name)) for place in (*PLACES[:2], ROOT / "tests"))


def files_named_in(text: str) -> set[str]:
    return set(re.findall(r"(?<![\w./-])(?:\w+/)*\w+\.py\b", text)) - NOT_WANTED


@pytest.mark.parametrize("page", ["docs/architecture.md", "CONTRIBUTING.md"])
def test_every_file_that_is_named_exists(page: str) -> None:
    text = (ROOT / page).read_text(encoding="utf-8")
    named = files_named_in(text)
    assert len(named) >= 5
    assert sorted(name for name in named if not exists(name)) == []


def test_every_folder_that_is_named_exists() -> None:
    text = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    folders = set(re.findall(r"(?<![\w./-])((?:\w+/)+)(?=[\s`])", text))
    assert "tables/html_report/" in folders
    assert sorted(folder for folder in folders if not exists(folder)) == []


def test_every_part_of_a_table_exists() -> None:
    """The first column of the tables of rooms and of the evidence."""
    text = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8").partition("## The values")[0]
    named = [
        name for row in re.findall(r"^\| (`.*?) \|", text, re.MULTILINE) for name in re.findall(r"`(\w+(?:\.py)?)`", row)
    ]
    assert {"conjugate", "cli", "baselines", "rows_time.py"} <= set(named)
    assert [name for name in named if not any((place / name).exists() for place in PLACES[:2])] == []
