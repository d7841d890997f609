"""What the commands take and say: shared arguments; results on standard output, the rest on standard error.

Exit codes: 0 done; 1 bad input, with one line on standard error; 2 wrong usage; 130 interrupted.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from bali.tables.complete_writes import STDOUT
from bali.tables.errors import TableError

if TYPE_CHECKING:
    from bali.tables.table_scores import MetricText
    from bali.training.table_fit import Progress as Step

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
OutRows = Annotated[str, typer.Option(help="CSV or Parquet file to write, by its ending; - for standard output.")]

BAD_INPUT, INTERRUPTED = 1, 130


class Talk:
    """Text for people; with `as_json`, one JSON object for machines on standard output and the text on standard error."""

    def __init__(self, *, as_json: bool = False, quiet: bool = False, to_stderr: bool = False) -> None:
        self.as_json, self.quiet = as_json, quiet
        self._text = Console(stderr=as_json or to_stderr, highlight=False)
        self.stderr = Console(stderr=True, highlight=False)

    def say(self, line: str = "", style: str | None = None) -> None:
        if not self.quiet:
            self._text.print(_printable(line), style=style, markup=False, soft_wrap=True)

    def note(self, line: str) -> None:
        if not self.quiet:
            self.stderr.print(f"note: {_printable(line)}", style="yellow", markup=False, soft_wrap=True)

    def notes(self, lines: Sequence[str]) -> None:
        for line in lines:
            self.note(line)

    def scores(self, metrics: Mapping[str, float], texts: Mapping[str, MetricText]) -> None:
        for name, value in metrics.items():
            self.say(f"  {name:<16}{value:<12.4g}{texts[name].meaning}")

    def result(self, content: Mapping[str, Any]) -> None:
        """The JSON object, if it was asked for."""
        if self.as_json:
            typer.echo(json.dumps(content, indent=2))


def talk_beside_rows(out: str, rows: str, *, as_json: bool, quiet: bool) -> Talk:
    """That of a command which writes rows to `out`: where that is standard output, there is room for nothing else."""
    if as_json and out == STDOUT:
        raise typer.BadParameter(f"{rows} and --json cannot both go to standard output", param_hint="--out")
    return Talk(as_json=as_json, quiet=quiet, to_stderr=out == STDOUT)


@contextmanager
def failing_cleanly(finished_in: Path | None = None) -> Iterator[None]:
    """One line and an exit code instead of a traceback, for what a user can do something about.

    `finished_in` has what a long run finished before it was interrupted.
    """
    from bali.conjugate.linalg import NumericalError  # here, as help texts do not need torch
    from bali.files import ModelFileError

    try:
        yield
    except (TableError, ModelFileError, NumericalError) as error:
        raise _failed(str(error)) from error
    except BrokenPipeError as error:  # the reader of our output, such as `head`, has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise typer.Exit(0) from error
    except OSError as error:
        where = f"{str(error.filename)!r}: " if error.filename else ""
        raise _failed(f"{where}{error.strerror or error}") from error
    except KeyboardInterrupt as error:
        left = "no file was written"
        if finished_in is not None:
            left = f"what is finished is in {finished_in}, and the same command goes on"
        Talk().stderr.print(f"interrupted; {left}", markup=False, soft_wrap=True)
        raise typer.Exit(INTERRUPTED) from error


def _failed(message: str) -> typer.Exit:
    line = _printable(" ".join(message.split()))
    Talk().stderr.print(f"error: {line}", style="red", markup=False, soft_wrap=True)
    return typer.Exit(BAD_INPUT)


def _printable(text: str) -> str:
    """Names of files and the words of other libraries can hold codes that a terminal would obey."""
    return "".join(c if c.isprintable() or c == "\n" else repr(c)[1:-1] for c in text)


# --- progress on standard error, where that is a terminal ------------------------------------------------------------


@contextmanager
def training_bar(talk: Talk) -> Iterator[Callable[[Step], None]]:
    """A function that is told of every step and draws it, or not."""
    if talk.quiet or not talk.stderr.is_terminal:
        yield lambda step: None
        return
    from bali.training import progress  # here, as help texts do not need torch

    with progress.training_bar(talk.stderr) as on_step:
        yield on_step


@contextmanager
def row_counter(talk: Talk) -> Iterator[Callable[[int], None]]:
    """A function that is told of rows that are done, of an unknown total."""
    if talk.quiet or not talk.stderr.is_terminal:
        yield lambda rows: None
        return
    from rich.progress import Progress, SpinnerColumn, TextColumn

    with Progress(SpinnerColumn(), TextColumn("{task.completed:,.0f} rows"), console=talk.stderr, transient=True) as bar:
        task = bar.add_task("rows", total=None)
        yield lambda rows: bar.advance(task, rows)
