"""`bali-benchmarks demo`: the paper's three synthetic sets, in a minute or two."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def demo(
    out: Annotated[Path, typer.Option(file_okay=False, help="Folder for pictures and results.json.")] = Path("demo"),
    quick: Annotated[bool, typer.Option("--quick", help="Small networks and few steps, for a look.")] = False,
) -> None:
    """Fit the paper's three synthetic sets, print their scores and draw what the networks know."""
    from bali_benchmarks import demo as demonstration

    demonstration.run(out, quick=quick)
