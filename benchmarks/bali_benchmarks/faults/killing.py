"""Work in a fork of this process that is killed, so that it cannot tidy up."""

from __future__ import annotations

import os
import random
import resource
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_WATCHED = ("open", "os.", "shutil.", "tempfile.", "ctypes.dlsym")
#: A table to read: nothing is written there.
_INPUT = "t.csv"


@dataclass(frozen=True)
class Moment:
    """When it is killed; one of these."""

    seconds: float | None = None
    event: int | None = None  # the n-th time that it opens, renames or removes something in its folder
    byte: int | None = None  # when a file that it writes is to have more bytes

    @classmethod
    def drawn(cls, rng: random.Random, most_events: int, most_seconds: float, most_bytes: int) -> Moment:
        match rng.choice(["event", "event", "event", "byte", "seconds"]):
            case "event":
                return cls(event=rng.randrange(most_events))
            case "byte":
                return cls(byte=rng.randrange(most_bytes))
            case _:
                return cls(seconds=rng.random() * most_seconds)


def killed(work: Callable[[], object], folder: Path, moment: Moment) -> bool:
    """Whether the kill was in time."""
    child = forked(work, folder, moment)
    if moment.seconds is not None:
        time.sleep(moment.seconds)
        os.kill(child, signal.SIGKILL)
    return os.WIFSIGNALED(os.waitpid(child, 0)[1])


def run_in_fork(work: Callable[[], object]) -> int:
    """Its status: 0 where all went well."""
    return os.waitpid(forked(work, Path(), Moment()), 0)[1]


def forked(work: Callable[[], object], folder: Path, moment: Moment) -> int:
    """The process that does it; its status is 1 where it raised something."""
    child = os.fork()
    if child:
        return child
    try:
        if moment.event is not None:
            _die_at(moment.event, str(folder))
        if moment.byte is not None:
            signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
            resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
            resource.setrlimit(resource.RLIMIT_FSIZE, (moment.byte, moment.byte))
        work()
        os._exit(0)
    except BaseException as error:
        os.write(2, f"{type(error).__name__}: {error}\n".encode())
        os._exit(1)


def _die_at(event_number: int, folder: str) -> None:
    seen = 0

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        nonlocal seen
        if not event.startswith(_WATCHED):
            return
        place = os.fsdecode(arguments[0]) if arguments and isinstance(arguments[0], str | bytes | os.PathLike) else ""
        if (place.startswith(folder) and not place.endswith(_INPUT)) or event == "ctypes.dlsym":
            if seen == event_number:
                os.kill(os.getpid(), signal.SIGKILL)
            seen += 1

    sys.addaudithook(hook)
