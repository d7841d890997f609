"""`bali-benchmarks data`: the benchmark sets, listed, fetched and checked."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated

import typer
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn

from bali.cli.talk import BAD_INPUT, INTERRUPTED, Json, Quiet, Talk, failing_cleanly
from bali_benchmarks.datasets import loading, storage
from bali_benchmarks.datasets.data_error import DataError
from bali_benchmarks.datasets.registry import ENTRIES, Entry

if TYPE_CHECKING:  # the network's libraries are only needed to fetch
    from bali_benchmarks.datasets.sources import Arrived

data = typer.Typer(no_args_is_help=True, help="The benchmark sets: list them, fetch them, check them.")
Names = Annotated[list[str] | None, typer.Argument(metavar="NAME", help="Sets, as `bali-benchmarks data list` names them.")]


@data.command("list")
def list_sets(as_json: Json = False) -> None:
    """Show what sets there are and where each would come from now."""
    talk = Talk(as_json=as_json)
    with failing_cleanly():
        rows = {entry.name: _description(entry) for entry in ENTRIES.values()}
        talk.say(_line("name", "task", "rows", "columns", "licence", "from", "source"), style="bold")
        for name, row in rows.items():
            talk.say(_line(name, row["task"], row["rows"], row["columns"], row["licence"], row["from"], row["source"]))
        talk.say(f"cache: {storage.cache_folder()}")
        talk.result(rows)


@data.command()
def fetch(
    names: Names = None,
    everything: Annotated[bool, typer.Option("--all", help="All sets.")] = False,
    quiet: Quiet = False,
) -> None:
    """Download sets that are not on this machine yet. What was interrupted goes on where it stopped."""
    talk = Talk(quiet=quiet)
    if not names and not everything:
        raise typer.BadParameter("name the sets to fetch, or say --all")
    with failing_cleanly():
        try:
            for entry in _chosen(None if everything else names):
                with download_bar(talk, entry.name) as on_arrival:
                    path = loading.fetch(entry.name, on_arrival)
                storage.read(entry, path)
                talk.say(f"{entry.name}: {path}")
        except KeyboardInterrupt as error:
            talk.stderr.print("interrupted; the same command goes on from here", markup=False)
            raise typer.Exit(INTERRUPTED) from error


@data.command()
def verify(names: Names = None, as_json: Json = False, quiet: Quiet = False) -> None:
    """Check that the sets on this machine are the published data, value by value."""
    talk = Talk(as_json=as_json, quiet=quiet)
    with failing_cleanly():
        states = {entry.name: _state(entry) for entry in _chosen(names)}
        for name, state in states.items():
            talk.say(f"{name:<14}{state['state']:<10}{state['detail']}")
        talk.result(states)
    if any(state["state"] == "wrong" for state in states.values()):
        raise typer.Exit(BAD_INPUT)


def _chosen(names: list[str] | None) -> list[Entry]:
    try:
        return [loading.find_entry(name) for name in names or ENTRIES]
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error


def _description(entry: Entry) -> dict[str, str | int]:
    return {
        "task": entry.task,
        "rows": entry.n_rows,
        "columns": len(entry.feature_names),
        "licence": entry.licence,
        "from": _place(entry),
        "source": entry.source,
    }


def _place(entry: Entry) -> str:
    found = storage.find(entry)
    if found is None:
        return "download"
    return "cache" if found.is_relative_to(storage.cache_folder()) else storage.FOLDER_VARIABLE


def _line(*cells: str | int) -> str:
    name, task, rows, columns, licence, place, source = (f"{c:,}" if isinstance(c, int) else c for c in cells)
    return f"{name:<14}{task:<15}{rows:>8}{columns:>9}  {licence:<12}{place:<10}{source}"


def _state(entry: Entry) -> dict[str, str]:
    path = storage.find(entry)
    if path is None:
        return {"state": "absent", "detail": f"not on this machine; `bali-benchmarks data fetch {entry.name}` gets it"}
    try:
        storage.read(entry, path)
    except DataError as error:
        return {"state": "wrong", "detail": str(error)}
    return {"state": "right", "detail": str(path)}


@contextmanager
def download_bar(talk: Talk, name: str) -> Iterator[Callable[[Arrived], None]]:
    """A function that is told how far a download has come and draws it, where standard error is a terminal."""
    if talk.quiet or not talk.stderr.is_terminal:
        yield lambda arrived: None
        return
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn())
    with Progress(*columns, console=talk.stderr, transient=True) as bar:
        task = bar.add_task(name, total=None, visible=False)

        def on_arrival(arrived: Arrived) -> None:
            what = f"{name}, file {arrived.number} of {arrived.n_files}"
            bar.update(task, description=what, completed=arrived.done, total=arrived.total, visible=True)

        yield on_arrival
