"""Every block of code on every page is run by a test, is a transcript that a command made, or a command that exists."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
import typer.main

from bali.cli.app import app
from bali_benchmarks.commands.main import app as benchmarks
from support.pages import names_after

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md")]
PAGES += sorted((ROOT / "docs").rglob("*.md"))
_FENCE = re.compile(r"^( *)```(\w*)[^\n]*\n(.*?)^ *```$", flags=re.DOTALL | re.MULTILINE)

#: Pages whose Python is run by a test of their own.
RUN_ELSEWHERE = {
    "README.md": "tests/house/test_readme.py",
    "docs/torch.md": "tests/house/test_torch_page.py",
    "docs/likelihoods.md": "tests/predictive/test_likelihoods_page.py",
    "docs/baselines.md": "tests/benchmarks/test_baselines_docs.py",
    "docs/command-line.md": "docs/transcripts.py",
}
_NETWORK = """
from collections import OrderedDict
import torch
from torch import nn
import bali
torch.manual_seed(0)
"""
#: Pages whose Python is run here, and what stands before it in the reader's mind.
RUN_HERE = {
    "docs/index.md": _NETWORK + "net = nn.Linear(1, 1)\nx = torch.randn(40, 1)\ny = x[:, 0] + 0.3 * torch.randn(40)\n",
    "docs/howto/save-and-load.md": "import warnings\nwarnings.simplefilter('ignore')\n",
    "docs/howto/scikit-learn.md": "import warnings\nwarnings.simplefilter('ignore')\n",
    "docs/layers.md": _NETWORK
    + "network = nn.Sequential(OrderedDict(stem=nn.Conv2d(1, 4, 3), norm=nn.BatchNorm2d(4), act=nn.ReLU(),"
    + " flat=nn.Flatten(), head=nn.Linear(144, 3)))\nx, y = torch.randn(20, 1, 8, 8), torch.randint(3, (20,))\n"
    + "likelihood = bali.likelihoods.Categorical()\n",
    "docs/distributed.md": _NETWORK
    + "network = nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 3))\n"
    + "batches = [(torch.randn(12, 5), torch.randint(3, (12,))) for _ in range(2)]\nx, y = batches[0]\n"
    + "parts = [(x[:6], y[:6]), (x[6:], y[6:])]\nimport warnings\nwarnings.simplefilter('ignore')  # there may be no GPU\n",
    "docs/pretrained.md": _NETWORK
    + "network = nn.Sequential(OrderedDict(body=nn.Linear(5, 8), act=nn.Tanh(), head=nn.Linear(8, 2)))\n"
    + "x = torch.randn(60, 5)\ny = torch.randint(2, (60,))\n",
    "docs/data.md": "",
}
NEEDS_DATA = {"docs/data.md"}
#: Made by `make docs`.
TRANSCRIPTS = {"docs/command-line.md"}
#: Pages with drawings in text.
DRAWINGS = {"docs/architecture.md"}
PROGRAMS = {"bali": app, "bali-benchmarks": benchmarks}


class Block(NamedTuple):
    page: str
    language: str
    text: str


def blocks(page: Path) -> list[Block]:
    name = str(page.relative_to(ROOT))
    return [Block(name, language, text) for _, language, text in _FENCE.findall(page.read_text(encoding="utf-8"))]


BLOCKS = [block for page in PAGES for block in blocks(page)]


def test_there_are_blocks() -> None:
    assert len(BLOCKS) > 40
    assert {block.language for block in BLOCKS} <= {"", "python", "sh", "mermaid"}


def test_python_is_run() -> None:
    pages = {block.page for block in BLOCKS if block.language == "python"}
    assert pages == RUN_ELSEWHERE.keys() | RUN_HERE.keys()
    for page, test in RUN_ELSEWHERE.items():
        assert Path(page).name in (ROOT / test).read_text(encoding="utf-8")


@pytest.mark.parametrize(
    "page", [*sorted(RUN_HERE.keys() - NEEDS_DATA), *(pytest.param(p, marks=pytest.mark.data) for p in NEEDS_DATA)]
)
def test_the_page_runs(page: str, tmp_path: Path) -> None:
    before: dict[str, Any] = {}
    with torch.random.fork_rng():
        exec(RUN_HERE[page], before)
        assert names_after(ROOT / page, tmp_path, before)


@pytest.mark.parametrize(
    "block", [b for b in BLOCKS if b.language in ("", "sh")], ids=lambda b: f"{b.page}: {b.text[:20]!r}"
)
def test_commands_exist(block: Block) -> None:
    lines = [line.strip() for line in block.text.splitlines() if line.strip()]
    if lines[0].startswith("$ "):
        assert block.page in TRANSCRIPTS
    elif shlex.split(lines[0])[0] in (*PROGRAMS, "make", "pip", "curl", ".venv/bin/pytest"):
        for line in lines:
            check_command(shlex.split(line, comments=True))
    else:
        assert block.page in DRAWINGS


def check_command(words: list[str]) -> None:
    program, *rest = words
    if program == "make":
        targets = re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), flags=re.MULTILINE)
        assert set(rest) <= set(targets)
    elif program in PROGRAMS and rest[0] != "--help":
        command: Any = typer.main.get_command(PROGRAMS[program])
        while hasattr(command, "commands"):
            assert rest[0] in command.commands, words
            command, rest = command.commands[rest[0]], rest[1:]
            if not rest:
                return
        known = {option for parameter in command.params for option in (*parameter.opts, *parameter.secondary_opts)}
        assert [word for word in rest if word.startswith("--") and word not in known] == []


def test_a_command_that_does_not_exist_is_seen() -> None:
    check_command(["bali", "fit", "x.csv", "--target", "y"])
    for wrong in (["bali", "fly"], ["bali", "fit", "--wings", "2"], ["make", "money"]):
        with pytest.raises(AssertionError):
            check_command(wrong)
