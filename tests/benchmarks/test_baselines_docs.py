"""The page about baselines: its code runs, its table is complete, its links lead somewhere."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bali_benchmarks.baselines import METHODS

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/baselines.md").read_text(encoding="utf-8")


def test_the_examples_run_and_the_method_added_there_learns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(METHODS, "langevin", raising=False)
    blocks = re.findall(r"^```python\n(.*?)^```", PAGE, flags=re.DOTALL | re.MULTILINE)
    names: dict[str, Any] = {"__name__": "baselines_page"}
    try:
        for number, block in enumerate(blocks):
            exec(compile(block, f"docs/baselines.md block {number}", "exec", dont_inherit=True), names)
        assert len(blocks) == 2
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
