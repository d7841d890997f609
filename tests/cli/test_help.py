"""Help is there at once: it needs none of the heavy libraries."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

PROGRAM = """
import json, sys
from bali.cli.app import app

try:
    app(json.loads(sys.argv[1]))
except SystemExit as end:
    assert end.code == 0
heavy = {"torch", "sklearn", "pandas", "scipy", "matplotlib", "pyarrow", "numpy", "safetensors"}
print(json.dumps(sorted(heavy & set(sys.modules))), file=sys.stderr)
"""


COMMANDS = ("fit", "predict", "query", "evaluate", "report", "serve")


@pytest.mark.parametrize("arguments", [["--help"], *([name, "--help"] for name in COMMANDS)])
def test_help_loads_no_heavy_library(arguments: list[str]) -> None:
    command = [sys.executable, "-c", PROGRAM, json.dumps(arguments)]
    process = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "Usage" in process.stdout
    assert json.loads(process.stderr) == []
