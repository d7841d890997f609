"""Work in another process, with bounds on its time and memory: what ends that process is an error here."""

from __future__ import annotations

import atexit
import json
import os
import resource
import signal
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from bali_benchmarks.faults.campaign import FaultError

_MOST_SECONDS = 60  # of work
_NEVER_LONGER = 900  # seconds of a clock on the wall: others may be busy
_ADDRESS_SPACE = 2**31  # more than the process has at first

Work = Callable[[Any], dict[str, Any]]


class Helper:
    """A fork of this process that does one kind of work, task after task; if it ends, the next task has another."""

    def __init__(self, work: Work) -> None:
        self.work = work
        self.child: int | None = None
        atexit.register(self.close)

    def __call__(self, task: Any) -> dict[str, Any]:
        """What the work says about a task; both are plain JSON."""
        if self.child is None:
            self._start()
        self.tasks.write(json.dumps(task) + "\n")
        self.tasks.flush()
        said = self.answers.readline()
        if not said:
            status = self.close()
            ending = signal.Signals(os.WTERMSIG(status)).name if os.WIFSIGNALED(status) else f"status {status}"
            raise FaultError(f"the interpreter ended by {ending}")
        told: dict[str, Any] = json.loads(said)
        if "failure" in told:
            raise FaultError(told["failure"])
        return told

    def _start(self) -> None:
        task_read, task_write = os.pipe()
        answer_read, answer_write = os.pipe()
        child = os.fork()
        if child == 0:
            os.close(task_write)
            os.close(answer_read)
            try:
                self._serve(task_read, answer_write)
            finally:
                os._exit(0)
        os.close(task_read)
        os.close(answer_write)
        self.child, self.tasks, self.answers = child, os.fdopen(task_write, "w"), os.fdopen(answer_read)

    def close(self) -> int:
        """End it, if it has not ended by itself; its status."""
        if self.child is None:
            return 0
        self.tasks.close()
        self.answers.close()
        with suppress(ProcessLookupError):
            os.kill(self.child, signal.SIGKILL)
        status = os.waitpid(self.child, 0)[1]
        self.child = None
        return status

    def __enter__(self) -> Helper:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _serve(self, task_read: int, answer_write: int) -> None:
        for ending in (signal.SIGALRM, signal.SIGPROF):
            signal.signal(ending, signal.SIG_DFL)
        used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (used + _ADDRESS_SPACE, used + _ADDRESS_SPACE))
        with os.fdopen(task_read) as tasks, os.fdopen(answer_write, "w") as answers:
            for task in tasks:
                signal.alarm(_NEVER_LONGER)
                signal.setitimer(signal.ITIMER_PROF, _MOST_SECONDS)
                try:
                    said = json.dumps(self.work(json.loads(task)))
                except Exception as error:
                    said = json.dumps({"failure": f"{type(error).__name__}: {str(error)[:200]}"})
                signal.alarm(0)
                signal.setitimer(signal.ITIMER_PROF, 0)
                answers.write(said + "\n")
                answers.flush()


def resident() -> float:
    """Bytes of memory that this process has, from where `most_resident` counts anew."""
    with suppress(OSError):  # where that is not allowed, the most is that since the start
        Path("/proc/self/clear_refs").write_text("5")
    return _status("VmRSS")


def most_resident() -> float:
    return _status("VmHWM")


def _status(name: str) -> float:
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024.0 * next(int(line.split()[1]) for line in lines if line.startswith(name))
