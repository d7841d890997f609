"""Results as JSON lines: what is finished is on disk, and a run that was interrupted goes on after it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch

import bali


def read_lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def append_line(path: Path, row: dict[str, Any]) -> dict[str, Any]:
    """The row as written, with the versions that made it."""
    stamped = row | {"version": bali.__version__, "torch": torch.__version__}
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as file:
        file.write(json.dumps(stamped) + "\n")
    return stamped


def write_lines(path: Path, rows: list[dict[str, Any]]) -> None:
    """These lines and no others, as they are."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
