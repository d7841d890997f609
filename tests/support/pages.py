"""The Python blocks of a page of the documentation."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest


def code_blocks(page: Path) -> list[str]:
    return re.findall(r"^```python\n(.*?)^```", page.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)


def names_after(page: Path, folder: Path) -> dict[str, Any]:
    """The names that the page's blocks leave behind, run one after the other in an empty folder."""
    blocks = code_blocks(page)
    assert blocks
    names: dict[str, Any] = {"__name__": page.stem}
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        for number, block in enumerate(blocks):
            exec(compile(block, f"{page.name} block {number}", "exec"), names)
    return names
