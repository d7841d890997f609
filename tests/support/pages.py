"""Code on pages of the documentation: in Markdown, and on the pages of the built site."""

from __future__ import annotations

import html
import re
from pathlib import Path
from typing import Any, NamedTuple

import pytest

ROOT = Path(__file__).parents[2]
#: Every document that a reader is sent to.
PAGES = [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md")]
PAGES += sorted((ROOT / "docs").rglob("*.md"))
_FENCE = re.compile(r"^( *)```(\w*)[^\n]*\n(.*?)^ *```$", flags=re.DOTALL | re.MULTILINE)


class Block(NamedTuple):
    page: str
    language: str
    text: str


def blocks_of(page: Path) -> list[Block]:
    """Between fences, without what they are indented by."""
    name = str(page.relative_to(ROOT))
    found = _FENCE.findall(page.read_text(encoding="utf-8"))
    return [Block(name, language, re.sub(rf"^{indent}", "", text, flags=re.MULTILINE)) for indent, language, text in found]


def code_on(page: Path) -> list[str]:
    """What stands in boxes on a page of the site, signatures of functions left out."""
    text = page.read_text(encoding="utf-8")
    boxes = re.findall(r'(<div class="[^"]*">)?\s*<pre[^>]*>(.*?)</pre>', text, flags=re.DOTALL)
    return [html.unescape(re.sub(r"<[^>]*>", "", box)) for around, box in boxes if "doc-signature" not in around]


def names_after(page: Path, folder: Path, before: dict[str, Any] | None = None) -> dict[str, Any]:
    """The names that the page's blocks of Python leave behind, run one after the other in an empty folder after `before`."""
    blocks = [block.text for block in blocks_of(page) if block.language == "python"]
    assert blocks
    names: dict[str, Any] = {"__name__": page.stem} | (before or {})
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        for number, block in enumerate(blocks):
            exec(compile(block, f"{page.name} block {number}", "exec", dont_inherit=True), names)
    return names
