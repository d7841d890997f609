"""Runs the commands that stand behind `$ ` in docs/command-line.md and puts in what they print. `make docs` calls it."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

PAGE = Path(__file__).with_name("command-line.md")


def run(command: str, folder: Path) -> str:
    """What a person would see, standard output and error together."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environment = os.environ | {"PATH": path, "COLUMNS": "120", "PYTHONWARNINGS": "ignore"}
    done = subprocess.run(
        command, shell=True, cwd=folder, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    return done.stdout.rstrip("\n")


def transcript(block: str, folder: Path) -> str:
    commands = [line.removeprefix("$ ") for line in block.splitlines() if line.startswith("$ ")]
    return "\n".join(f"$ {command}\n{run(command, folder)}".rstrip() for command in commands) + "\n"


def made_anew(page: str) -> str:
    """The page with what its commands print now."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for block in re.findall(r"^```python\n(.*?)^```", page, flags=re.DOTALL | re.MULTILINE):
            subprocess.run([sys.executable, "-c", block], cwd=folder, check=True)
        lines = (folder / "diabetes.csv").read_text().splitlines()
        lines[7] = "old," + lines[7].partition(",")[2]
        (folder / "broken.csv").write_text("\n".join(lines) + "\n")
        return re.sub(
            r"^```\n(\$ .*?)^```",
            lambda match: f"```\n{transcript(match[1], folder)}```",
            page,
            flags=re.DOTALL | re.MULTILINE,
        )


def main() -> None:
    PAGE.write_text(made_anew(PAGE.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main()
