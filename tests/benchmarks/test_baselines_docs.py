"""The page about baselines: its code runs, its table is complete, its links lead somewhere."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from bali_benchmarks.baselines import METHODS
from support.pages import names_after

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/baselines.md").read_text(encoding="utf-8")


def test_the_examples_run_and_the_method_added_there_learns(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delitem(METHODS, "langevin", raising=False)
    try:
        names = names_after(ROOT / "docs/baselines.md", tmp_path)
        assert np.mean((names["low"] < names["y"]) & (names["y"] < names["high"])) > 0.7
        assert names["model"].score(names["X"], names["y"]) > 0.8
        assert len(METHODS["langevin"].grid) == 6
    finally:
        METHODS.pop("langevin", None)


def test_the_table_has_every_method() -> None:
    assert re.findall(r"^\| `(\w+)` \|", PAGE, flags=re.MULTILINE) == list(METHODS)


def test_links_lead_to_files() -> None:
    links = re.findall(r"\]\(([^)#\s]+)\)", PAGE)
    assert [link for link in links if not (ROOT / "docs" / link).exists()] == []
