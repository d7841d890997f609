"""`bali-benchmarks data`: what it prints, and its exit codes."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from pathlib import Path

import pooch
import pytest
from rich.console import Console
from typer.testing import CliRunner, Result

from bali.cli.talk import Talk
from bali_benchmarks.commands import data as command
from bali_benchmarks.commands.main import app
from bali_benchmarks.datasets import loading, storage
from bali_benchmarks.datasets.registry import ENTRIES
from bali_benchmarks.datasets.sources import Arrived
from support.data_server import Server, running_server
from support.small_sets import arrays_like, original_files, small_entry, use_only

SETS = ("yacht", "spam")


def run(*arguments: str) -> Result:
    return CliRunner().invoke(app, list(arguments))


@pytest.fixture(autouse=True)
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    """Two small sets on a server, an empty folder and an empty cache."""
    (tmp_path / "folder").mkdir()
    monkeypatch.setenv("BALI_DATA", str(tmp_path / "folder"))
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.setattr(pooch, "os_cache", lambda project: tmp_path / project)
    with running_server() as server:
        use_only(monkeypatch, *(small_entry(name, arrays_like(name), server.url) for name in SETS))
        for name in SETS:
            server.files |= original_files(name, arrays_like(name))
        yield server


def put_in_folder(name: str, tmp_path: Path, seed: int = 0) -> Path:
    path = tmp_path / "folder" / ENTRIES[name].path
    storage.write(path, arrays_like(name, seed))
    return path


def test_list_says_where_a_set_would_come_from(tmp_path: Path) -> None:
    put_in_folder("yacht", tmp_path)
    result = run("data", "list")
    assert result.exit_code == 0
    header, yacht, spam, cache = result.stdout.splitlines()
    assert header.split() == ["name", "task", "rows", "columns", "licence", "from", "source"]
    assert yacht.split()[:4] == ["yacht", "regression", "20", "6"]
    assert "BALI_DATA UCI, Yacht Hydrodynamics" in yacht
    assert "CC BY 4.0   download  UCI, Spambase" in spam
    assert cache == f"cache: {tmp_path / 'bali'}"
    assert run("data", "fetch", "spam").exit_code == 0
    listed = json.loads(run("data", "list", "--json").stdout)
    assert {name: row["from"] for name, row in listed.items()} == {"yacht": "BALI_DATA", "spam": "cache"}
    assert listed["spam"]["columns"] == 57


def test_fetch_gets_what_is_named_once(server: Server, tmp_path: Path) -> None:
    result = run("data", "fetch", "spam")
    path = tmp_path / "bali" / "classification" / "spam.npz"
    assert (result.exit_code, result.output) == (0, f"spam: {path}\n")
    assert storage.fingerprint(storage.read(ENTRIES["spam"], path)) == ENTRIES["spam"].fingerprint
    assert run("data", "fetch", "spam").exit_code == 0
    assert len(server.asked) == 1


def test_fetch_all_and_quietly(tmp_path: Path) -> None:
    result = run("data", "fetch", "--all", "--quiet")
    assert (result.exit_code, result.output) == (0, "")
    assert sorted(path.stem for path in (tmp_path / "bali").rglob("*.npz")) == ["spam", "yacht"]


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [((), "name the sets to fetch, or say --all"), (("boston",), "there is no data set 'boston'; there are yacht, spam")],
)
def test_wrong_usage_of_fetch(arguments: tuple[str, ...], complaint: str) -> None:
    result = run("data", "fetch", *arguments)
    assert result.exit_code == 2
    assert complaint in result.stderr


def test_fetch_without_network_says_what_to_do(server: Server) -> None:
    server.statuses["spambase.zip"] = 503
    result = run("data", "fetch", "spam")
    assert result.exit_code == 1
    assert result.stderr.startswith("error: cannot download 'spam' (127.0.0.1:")
    assert "set BALI_DATA to a folder that has classification/spam.npz" in result.stderr
    assert len(result.stderr.splitlines()) == 1


def test_fetch_names_a_damaged_file(tmp_path: Path) -> None:
    path = put_in_folder("spam", tmp_path, seed=1)
    result = run("data", "fetch", "spam")
    assert result.exit_code == 1
    assert f"error: {str(path)!r} does not hold the published data of 'spam': delete it" in result.stderr


def test_an_interruption_tells_that_it_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*arguments: object) -> Path:
        raise KeyboardInterrupt

    monkeypatch.setattr(loading, "fetch", interrupted)
    result = run("data", "fetch", "spam")
    assert (result.exit_code, result.stderr) == (130, "interrupted; the same command goes on from here\n")


def test_verify_tells_right_from_wrong_and_absent(tmp_path: Path) -> None:
    assert run("data", "verify").exit_code == 0
    assert (
        "spam          absent    not on this machine; `bali-benchmarks data fetch spam` gets it"
        in run("data", "verify").stdout
    )
    yacht = put_in_folder("yacht", tmp_path)
    assert f"yacht         right     {yacht}" in run("data", "verify", "yacht").stdout
    put_in_folder("spam", tmp_path, seed=1)
    result = run("data", "verify", "--json")
    assert result.exit_code == 1
    states = json.loads(result.stdout)
    assert {name: state["state"] for name, state in states.items()} == {"yacht": "right", "spam": "wrong"}
    assert run("data", "verify", "yacht", "--quiet").output == ""
    assert run("data", "verify", "boston").exit_code == 2


@pytest.mark.parametrize("terminal", [True, False])
def test_a_bar_is_drawn_on_terminals_only(terminal: bool) -> None:
    talk = Talk()
    talk.stderr = Console(file=io.StringIO(), force_terminal=terminal, width=100)
    with command.download_bar(talk, "yacht") as on_arrival:
        on_arrival(Arrived("data.txt", 3, 43, 1000, 2000))
    drawn = talk.stderr.file.getvalue()  # type: ignore[attr-defined]
    assert ("yacht, file 3 of 43" in drawn) == terminal
    assert ("1.0/2.0 kB" in drawn) == terminal
