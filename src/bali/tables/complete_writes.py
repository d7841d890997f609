"""Files and folders that appear when they are complete, whoever else writes to the same place and whatever is killed.

What is being written has a name of its own beside its place (`bali.files.part_of`), and `bali.files.settle`, which every
command calls for the places it reads or writes, removes what a killed one left. A folder that is in the way is exchanged
with the new one in a single step where the system can do that. Elsewhere the old one steps aside first, and names record how
far that went:

    .NAME.xxxxxxxx.new   complete, and to take the place
    .NAME.xxxxxxxx.old   what stood there before

so that `settle` can finish what was begun.
"""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from bali.files import part_of, real, remove, settle, take_mode, take_place
from bali.tables.errors import TableError

STDOUT = "-"  # instead of a file
_CURRENT_FOLDER, _EXCHANGE = -100, 2  # AT_FDCWD and RENAME_EXCHANGE of Linux


@contextmanager
def complete_file(path: Path) -> Iterator[Path]:
    """A path to write to; what is there at the end takes the place of `path`, or vanishes if something goes wrong.

    A device or a pipe, such as /dev/null, is written to and not replaced.
    """
    path = real(path)
    if path.is_dir():
        raise TableError(f"{str(path)!r} is a folder; name a file to write to")
    if not path.parent.is_dir():
        raise TableError(f"no folder at {str(path.parent)!r} to write {path.name!r} to")
    if path.exists() and not path.is_file():
        yield path
        return
    settle(path)
    with part_of(path) as part:
        yield part
        take_place(part, path)


@contextmanager
def complete_folder(folder: Path, check: Callable[[], None]) -> Iterator[Path]:
    """A folder to fill that takes the place of `folder` at the end, if `check` finds nothing against it."""
    folder = real(folder)
    settle(folder)
    with part_of(folder, is_folder=True) as part:
        yield part
        check()  # once more: training takes a while
        take_mode(part, folder)
        if not (folder.exists() and any(folder.iterdir())):
            part.rename(folder)
        elif not exchange(part, folder):
            _swap(part, folder)


def _swap(part: Path, folder: Path) -> None:
    """In steps, of which each leaves a state that `settle` can finish."""
    new, old = part.with_suffix(".new"), part.with_suffix(".old")
    part.rename(new)
    try:
        folder.rename(old)
        new.rename(folder)
    except BaseException:
        if not folder.exists() and old.exists():
            old.rename(folder)
        remove(new)
        raise
    remove(old)


def exchange(one: Path, other: Path) -> bool:
    """Two names change places in one step; False where the system or the file system cannot do that."""
    rename = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None) if sys.platform == "linux" else None
    if rename is None:
        return False
    done: int = rename(_CURRENT_FOLDER, os.fsencode(one), _CURRENT_FOLDER, os.fsencode(other), _EXCHANGE)
    return done == 0
