"""Every block of code on every page is run by a test, is a transcript that a command made, or a command that exists.

`test_site.py` holds what stands in boxes on the built pages against the blocks that are looked at here.
"""

from __future__ import annotations

import inspect
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
import typer.main

import bali
from bali.cli.app import app
from bali_benchmarks.commands.main import app as benchmarks
from support.pages import PAGES, ROOT, Block, blocks_of, names_after

sys.path.insert(0, str(ROOT / "docs"))
import transcripts

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

BLOCKS = [block for page in PAGES for block in blocks_of(page)]


def test_there_are_blocks() -> None:
    assert len(BLOCKS) > 40
    assert {block.language for block in BLOCKS} <= {"", "python", "sh", "mermaid"}


def test_python_is_run() -> None:
    pages = {block.page for block in BLOCKS if block.language == "python"}
    assert pages == RUN_ELSEWHERE.keys() | RUN_HERE.keys()
    for page, test in RUN_ELSEWHERE.items():
        text = (ROOT / test).read_text(encoding="utf-8")
        assert Path(page).name in text
        assert page in TRANSCRIPTS or "names_after(" in text  # which runs all of them


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
    elif lines[0].split()[0] in (*PROGRAMS, "make", "pip", "curl", "python", "torchrun", ".venv/bin/pytest"):
        for line in lines:
            check_command(shlex.split(line, comments=True))
    else:
        assert block.page in DRAWINGS


def check_command(words: list[str]) -> None:
    program, *rest = words
    if program == "make":
        targets = re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), flags=re.MULTILINE)
        assert set(rest) <= set(targets)
    elif program in ("python", "torchrun"):
        assert (ROOT / rest[-1]).is_file()
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


# --- docstrings -------------------------------------------------------------------------------------------------


def test_the_code_of_a_docstring_runs() -> None:
    """The only one of the reference with code in it; test_site.py would see another."""
    text = inspect.getdoc(bali.AveragedMeans)
    assert text is not None
    code = inspect.cleandoc(text[text.index("    averaged = ") : text.index("Spread and noise")])
    before: dict[str, Any] = {}
    with torch.random.fork_rng():
        exec(_NETWORK + "batches = [(torch.randn(30, 2), torch.randn(30, 1))] * 2\nx_new = torch.randn(5, 2)\n", before)
        before["inference"] = bali.LayerwiseInference(torch.nn.Linear(2, 1), bali.likelihoods.Gaussian(), n_data=30)
        exec(code, before)
    assert before["predictive"].mean.shape == (5, 1)


# --- commands, run ----------------------------------------------------------------------------------------------


def words(block: Block) -> Iterator[list[str]]:
    for line in block.text.splitlines():
        if line.strip():
            yield shlex.split(line, comments=True)


RUN = sorted({b.page for b in BLOCKS if b.language == "sh" and any(w[0] == "bali" for w in words(b))})


@pytest.mark.slow
@pytest.mark.parametrize("page", RUN)
def test_commands_run(page: str, tmp_path: Path) -> None:
    """Those of `bali`, one after the other, in a folder that has the tables they name. A server runs until the next one."""
    rng = np.random.default_rng(0)
    houses = pd.DataFrame({"area": rng.uniform(25, 140, 60), "town": rng.choice(["Aberg", "Bedorf"], 60)})
    houses["sold"] = pd.Timestamp("2024-01-01") + pd.to_timedelta(rng.integers(0, 300, 60), unit="D")
    houses["price"] = 3 * houses.area + 10 * rng.normal(size=60)
    for name in ("data", "houses", "labelled", "new", "row"):
        houses.to_csv(tmp_path / f"{name}.csv", index=False)
    (tmp_path / "bin").mkdir()
    for opener in ("xdg-open", "www-browser"):  # a browser that opens nothing
        (tmp_path / "bin" / opener).write_text("#!/bin/sh\n")
        (tmp_path / "bin" / opener).chmod(0o755)
    places = [str(tmp_path / "bin"), str(Path(sys.executable).parent), os.environ["PATH"]]
    environment = os.environ | {"PATH": os.pathsep.join(places), "BROWSER": "xdg-open"}
    server: subprocess.Popen[str] | None = None
    try:
        for command in (w for b in BLOCKS if b.page == page and b.language == "sh" for w in words(b)):
            if command[:2] == ["bali", "serve"]:
                server = subprocess.Popen(
                    command,
                    cwd=tmp_path,
                    env=environment | {"PYTHONUNBUFFERED": "1"},
                    stdout=subprocess.PIPE,
                    stderr=subprocess.STDOUT,
                    text=True,
                )
                assert server.stdout is not None
                assert "http://127.0.0.1:8000" in server.stdout.readline()
            elif command[0] in ("bali", "curl"):
                done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
                assert done.returncode == 0, (command, done.stdout, done.stderr)
                assert command[0] != "curl" or '"prediction"' in done.stdout
    finally:
        if server is not None:
            server.terminate()
            server.communicate()


@pytest.mark.slow
def test_transcripts_are_of_this_version() -> None:
    """All but the numbers, which depend on the machine, and the spaces that align them."""

    def without_numbers(text: str) -> str:
        return re.sub(r" *[-\d][\d.,e+-]* *", " 0 ", text)

    page = transcripts.PAGE.read_text(encoding="utf-8")
    assert without_numbers(transcripts.made_anew(page)) == without_numbers(page), "run `make docs`"
