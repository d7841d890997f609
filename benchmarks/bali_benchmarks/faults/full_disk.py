"""A disk that is full: one line or an `OSError`, the old file as it was, nothing left behind; with room again, it works.

The disk is one of the system's in memory with so many bytes left, where that is allowed; or no file may have more than so
many bytes; or one operation on a file fails.
"""

from __future__ import annotations

import ctypes
import errno
import os
import random
import resource
import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from bali_benchmarks.faults import table_commands as commands
from bali_benchmarks.faults.campaign import FaultError
from bali_benchmarks.faults.forks import Helper
from bali_benchmarks.faults.killed_saves import EPOCHS, digest, digest_of, models
from bali_benchmarks.faults.original_files import fitted_network

KINDS = ("fit", "fit --force", "predict", "predict to Parquet", "report", "save", "checkpoint")
_OPERATIONS = ("open", "os.mkdir", "os.rename")
_DISK = 2**22
_BALLAST = "ballast"
_NEW_USER, _NEW_MOUNTS = 0x10000000, 0x00020000  # of Linux: flags of unshare


def full_disk(seed: int, folder: Path) -> str:
    """One piece of work that comes upon a full disk, in a process of its own."""
    commands.warm()
    commands.older_model()
    models()
    with Helper(lambda _: {"outcome": _tried(random.Random(seed), KINDS[seed % len(KINDS)], folder)}) as in_fork:
        return str(in_fork(None)["outcome"])


def _tried(rng: random.Random, kind: str, folder: Path) -> str:
    how = rng.choice(["disk", "disk", "bytes", "operation"])
    if how == "disk" and not _small_disk(folder):
        how = "bytes"
    work, is_new = _prepared(rng, kind, folder)
    before = sorted(path.name for path in folder.iterdir())
    with _full(rng, how, folder):
        failed = work()
    left = {path.name for path in folder.iterdir()}
    if failed and is_new():
        raise FaultError(f"{kind}, {how}: it said {failed[:100]!r}, and it was done")
    if not failed and not is_new():
        raise FaultError(f"{kind}, {how}: nothing was done, and nothing said")
    made = {commands.MODEL} if kind == "fit" and not failed else set[str]()
    if kind == "checkpoint":  # a finished member has its own file beside it
        made = {"checkpoint", "checkpoint.0"}
    if left - set(before) - made:
        raise FaultError(f"{kind}, {how}: left behind {sorted(left - set(before))}")
    again = work()
    if not is_new() or (again and kind != "fit"):  # a model that is there is not replaced without --force
        raise FaultError(f"{kind}, {how}: with room again: {again or 'nothing new'}")
    return f"{kind}: {'refused, the old is there' if failed else 'enough room'}"


def _prepared(rng: random.Random, kind: str, folder: Path) -> tuple[Callable[[], str], Callable[[], bool]]:
    """The work, which says what went wrong, and whether what is there is the new one; anything but old or new is a fault."""
    if kind == "save":
        path, (old, new) = folder / "model.bali", rng.sample(models(), 2)
        old.save(path)
        known = [digest(path), digest_of(new)]
        return _raising(lambda: new.save(path)), lambda: bool(known.index(digest(path)))
    if kind == "checkpoint":
        path, done = folder / "checkpoint", []

        def train() -> None:
            done.append(fitted_network(EPOCHS, path))

        return _raising(train), lambda: bool(done)
    commands.write_table(folder)
    model, out = folder / commands.MODEL, folder / commands.OUT
    if kind == "fit":
        return lambda: commands.command(commands.fit(folder, 2, force=False)), lambda: model.exists() and _seed(model) == 2
    shutil.copytree(commands.older_model(), model)
    if kind == "fit --force":
        return lambda: commands.command(commands.fit(folder, 2, force=True)), lambda: _seed(model) == 2
    if kind == "report":
        page = model / "report.html"
        page.write_text("old</html>")
        return lambda: commands.command(["report", model]), lambda: _is_new_page(model, page)
    out = out.with_suffix(".parquet" if kind.endswith("Parquet") else ".csv")
    out.write_text("old\n")
    return lambda: commands.command(commands.predict(folder, out.name)), lambda: commands.check_predictions(out)


def _seed(model: Path) -> int:
    return int(commands.check_model(model).estimator.get_params()["random_state"])


def _is_new_page(model: Path, page: Path) -> bool:
    commands.check_model(model)
    return page.read_text() != "old</html>"


def _raising(work: Callable[[], object]) -> Callable[[], str]:
    def tried() -> str:
        try:
            work()
        except OSError as error:
            return str(error)
        return ""

    return tried


@contextmanager
def _full(rng: random.Random, how: str, folder: Path) -> Iterator[None]:
    most = rng.choice([0, 100, 4096, 20_000, 200_000])
    room = rng.randint(0, most)
    if how == "disk":
        ballast = folder / _BALLAST
        ballast.write_bytes(bytes(max(shutil.disk_usage(folder).free - room, 0)))
        yield
        ballast.unlink()
    elif how == "bytes":
        resource.setrlimit(resource.RLIMIT_FSIZE, (room, resource.RLIM_INFINITY))
        yield
        resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    else:
        is_over = _fail_from(rng.randrange(12), str(folder))
        yield
        is_over()


def _fail_from(number: int, folder: str) -> Callable[[], None]:
    """From the n-th file that is made or renamed in the folder on, all fail, until what is returned is called."""
    seen, is_over = 0, False

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        nonlocal seen
        if event not in _OPERATIONS or not isinstance(arguments[0], str | bytes | os.PathLike):
            return
        is_made = event != "open" or bool(arguments[2] & (os.O_CREAT | os.O_WRONLY | os.O_RDWR))
        if is_made and os.fsdecode(arguments[0]).startswith(folder):
            seen += 1
            if seen > number and not is_over:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), os.fsdecode(arguments[0]))

    def end() -> None:
        nonlocal is_over
        is_over = True

    sys.addaudithook(hook)
    return end


def _small_disk(folder: Path) -> bool:
    """A disk of this process alone at this folder; False where the system does not allow that."""
    if sys.platform != "linux":
        return False
    system = ctypes.CDLL(None, use_errno=True)
    if system.unshare(_NEW_MOUNTS if os.geteuid() == 0 else _NEW_USER | _NEW_MOUNTS):
        return False
    return system.mount(b"none", os.fsencode(folder), b"tmpfs", 0, f"size={_DISK}".encode()) == 0
