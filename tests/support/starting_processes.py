"""Starts several processes of one run on this machine."""

from __future__ import annotations

import multiprocessing
import socket
from collections.abc import Callable
from multiprocessing.process import BaseProcess
from pathlib import Path

import torch

from support import distributed_cases as cases

#: The results of all cases, by size of the group and rank.
Found = dict[tuple[int, int], dict[str, cases.Results]]


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def start_processes(n: int, work: Callable[[Path], None], folder: Path) -> list[BaseProcess]:
    """Forked from a process that has imported everything once."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(
        ["support.distributed_cases", "sympy"]
    )  # the latter is what torch imports when it is first used
    address = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "WORLD_SIZE": str(n)}
    environment = address | {"BALI_TEST_FOLDER": str(folder)}
    processes: list[BaseProcess] = [
        context.Process(target=cases.as_process, args=(work, folder, r, environment)) for r in range(n)
    ]
    for process in processes:
        process.start()
    return processes


def errors(folder: Path) -> str:
    return "\n".join(file.read_text() for file in sorted(folder.glob("error-*")))


def results_of_processes(folder: Path) -> Found:
    """The results of all cases: one start of four processes for all of them."""
    processes = start_processes(4, cases.all_cases, folder)
    for process in processes:
        process.join(timeout=120)
    assert [process.exitcode for process in processes] == [0] * 4, errors(folder)
    return {(size, r): torch.load(folder / f"results-{size}-{r}.pt") for size in (2, 4) for r in range(size)}
