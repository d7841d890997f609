"""Arguments and options that several commands share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

Model = Annotated[
    Path, typer.Argument(help="What `bali fit` wrote: the folder, or the model.bali in it.", show_default=False)
]
File = Annotated[Path, typer.Argument(help="A CSV (also .gz) or Parquet file; - for standard input.", show_default=False)]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object on standard output, for programs.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Say nothing unless something is wrong.")]
Encoding = Annotated[str, typer.Option(help="Text encoding of a CSV file, for example latin-1.")]
Samples = Annotated[
    int | None,
    typer.Option(min=1, help="Weight samples per prediction; fewer are faster. Default: as trained.", show_default=False),
]
