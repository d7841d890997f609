"""Results as JSON lines: what is finished is on disk, and a run that was interrupted goes on after it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch

import bali
from bali.files import ModelFileError, replacing


def read_lines(path: Path) -> list[dict[str, Any]]:
    lines = path.read_text().splitlines() if path.exists() else []
    return [_parsed(line, path, number) for number, line in enumerate(lines, start=1)]


def _parsed(line: str, path: Path, number: int) -> dict[str, Any]:
    try:
        row = json.loads(line)
    except ValueError as error:
        raise ModelFileError(
            f"{str(path)!r}, line {number} is not complete, perhaps because a run was killed while it wrote; delete the "
            "line, and what it held is run again"
        ) from error
    assert isinstance(row, dict)
    return row


def append_line(path: Path, row: dict[str, Any]) -> dict[str, Any]:
    """The row as written, with the versions that made it."""
    stamped = row | {"version": bali.__version__, "torch": torch.__version__}
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as file:
        file.write(json.dumps(stamped) + "\n")
    return stamped


def write_lines(path: Path, rows: list[dict[str, Any]]) -> None:
    """These lines and no others, as they are, in one move: if it fails, the file is what it was."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path) as file:
        file.writelines(json.dumps(row).encode() + b"\n" for row in rows)
