"""The Python blocks of a page of the documentation."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest


def code_blocks(page: Path) -> list[str]:
    found = re.findall(r"^( *)```python\n(.*?)^ *```", page.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)
    return [re.sub(rf"^{indent}", "", block, flags=re.MULTILINE) for indent, block in found]


def names_after(page: Path, folder: Path, before: dict[str, Any] | None = None) -> dict[str, Any]:
    """The names that the page's blocks leave behind, run one after the other in an empty folder after `before`."""
    blocks = code_blocks(page)
    assert blocks
    names: dict[str, Any] = {"__name__": page.stem} | (before or {})
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        for number, block in enumerate(blocks):
            exec(compile(block, f"{page.name} block {number}", "exec", dont_inherit=True), names)
    return names
