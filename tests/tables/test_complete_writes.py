"""Files and folders appear whole: two writers, killed writers, systems with and without an exchange of folders."""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from bali.files import settle
from bali.tables import complete_writes
from bali.tables.complete_writes import complete_file, complete_folder


def nothing_against_it() -> None:
    pass


def killed(work: Callable[[], None]) -> None:
    """Work in a process that is killed at its end, so that it cannot tidy up."""
    child = os.fork()
    if child == 0:
        try:
            work()
        finally:
            os.kill(os.getpid(), signal.SIGKILL)
    assert os.WTERMSIG(os.waitpid(child, 0)[1]) == signal.SIGKILL


def write_folder(folder: Path, content: str) -> None:
    with complete_folder(folder, nothing_against_it) as part:
        (part / "model").write_text(content)


def test_two_writers_of_one_file_do_not_meet(tmp_path: Path) -> None:
    out = tmp_path / "p.csv"
    with complete_file(out) as one, one.open("w") as first:
        first.write("first, ")
        with complete_file(out) as other:
            other.write_text("second")
        first.write("to its end")
        first.flush()
        assert out.read_text() == "second"
    assert out.read_text() == "first, to its end"
    assert [path.name for path in tmp_path.iterdir()] == ["p.csv"]


def test_what_a_killed_writer_left_is_removed_by_the_next(tmp_path: Path) -> None:
    def begin() -> None:
        with complete_file(tmp_path / "p.csv") as part:
            part.write_text("half")
            os.kill(os.getpid(), signal.SIGKILL)

    killed(begin)
    assert len(list(tmp_path.glob(".p.csv.*.part"))) == 1
    (tmp_path / ".p.csv.bak").write_text("mine")
    with complete_file(tmp_path / "p.csv") as part:
        part.write_text("whole")
    assert sorted(path.name for path in tmp_path.iterdir()) == [".p.csv.bak", "p.csv"]


@pytest.mark.parametrize("in_one_step", [True, False])
def test_a_folder_is_replaced_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, in_one_step: bool) -> None:
    if not in_one_step:
        monkeypatch.setattr(complete_writes, "exchange", lambda one, other: False)
    for content in ("old", "new"):
        write_folder(tmp_path / "m", content)
    assert (tmp_path / "m" / "model").read_text() == "new"
    assert [path.name for path in tmp_path.iterdir()] == ["m"]


@pytest.mark.parametrize("n_renames", [0, 1, 2, 3])
def test_a_swap_in_steps_is_finished_or_undone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, n_renames: int) -> None:
    write_folder(tmp_path / "m", "old")
    rename = Path.rename

    def begin() -> None:
        done = 0

        def counted(self: Path, target: Path) -> Path:
            nonlocal done
            if done == n_renames:
                os.kill(os.getpid(), signal.SIGKILL)
            done += 1
            return rename(self, target)

        monkeypatch.setattr(complete_writes, "exchange", lambda one, other: False)
        monkeypatch.setattr(Path, "rename", counted)
        monkeypatch.setattr(shutil, "rmtree", lambda *_, **__: os.kill(os.getpid(), signal.SIGKILL))
        write_folder(tmp_path / "m", "new")

    killed(begin)
    settle(tmp_path / "m")
    assert (tmp_path / "m" / "model").read_text() == ("old" if n_renames < 2 else "new")
    assert [path.name for path in tmp_path.iterdir()] == ["m"]


def test_a_folder_is_there_at_every_moment_of_an_exchange(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_folder(tmp_path / "a", "a")
    write_folder(tmp_path / "b", "b")
    if not complete_writes.exchange(tmp_path / "a", tmp_path / "b"):
        pytest.skip("no exchange of folders here")
    assert (tmp_path / "a" / "model").read_text() == "b"

    def no_rename(self: Path, target: Path) -> Path:
        raise AssertionError("a rename leaves a moment without the folder")

    monkeypatch.setattr(Path, "rename", no_rename)
    write_folder(tmp_path / "a", "new")
    assert (tmp_path / "a" / "model").read_text() == "new"


def test_what_is_being_written_is_left_alone(tmp_path: Path) -> None:
    with complete_folder(tmp_path / "m", nothing_against_it) as part:
        settle(tmp_path / "m")
        assert part.is_dir()
    assert (tmp_path / "m").is_dir()
