"""Peak memory of a few training steps, in a process of its own: `python -m bali_benchmarks.performance.memory`.

Linux tells a process the most memory it ever held (VmHWM), and lets it start that count anew. The allocator is told to
return what is freed at once, so that the peak is that of tensors alive at the same time and not of its habits.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import bali
from bali.layers.layer import Layer

_PROCESS = Path("/proc/self")
_ALLOCATOR = {"MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_TRIM_THRESHOLD_": "65536", "MALLOC_ARENA_MAX": "1"}


def peak_in_new_process(method: str, sizes: list[int], rows: int, steps: int = 3) -> dict[str, int]:
    """Bytes above the start of a training: the peak, and those of BALI's factors."""
    if not (_PROCESS / "clear_refs").exists():
        raise OSError("peak memory is read from /proc, which only Linux has: run this measurement there")
    request = {"method": method, "sizes": sizes, "rows": rows, "steps": steps, "threads": torch.get_num_threads()}
    command = [sys.executable, "-m", "bali_benchmarks.performance.memory", json.dumps(request)]
    done = subprocess.run(command, env=os.environ | _ALLOCATOR, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"the process that measures memory failed: {done.stderr.strip()[-2000:]}")
    result: dict[str, int] = json.loads(done.stdout)
    return result


def measure(method: str, sizes: list[int], rows: int, steps: int, threads: int) -> dict[str, int]:
    """In this process. The data are made before the count begins, weights and all that training adds after it."""
    from bali_benchmarks.performance.growth import random_batch, training

    torch.set_num_threads(threads)
    x, y = random_batch(rows, sizes)
    _load_libraries(method)
    start = _start_count()
    trained = training(method, sizes, 60_000)
    for _ in range(steps):
        trained.step(x, y)
    peak = _status("VmHWM") - start
    inference = getattr(trained, "inference", None)
    return {"peak": peak, "factors": 0 if inference is None else factor_bytes(inference)}


def factor_bytes(inference: bali.LayerwiseInference) -> int:
    """What an inference keeps of all its layers between steps: averages, M, R⁻¹, U and their factors."""
    storages = {t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in _tensors(inference.state.layers)}
    return sum(storages.values())


def _tensors(value: Any) -> Iterator[Tensor]:
    """All tensors that a state holds, those in caches too; the module's own weights are not among them."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, dict):
        for entry in value.values():
            yield from _tensors(entry)
    elif isinstance(value, list | tuple):
        for entry in value:
            yield from _tensors(entry)
    elif hasattr(value, "__dict__") and not isinstance(value, Layer):
        yield from _tensors(vars(value))


def _load_libraries(method: str) -> None:
    """One step of a tiny network: code and buffers that every use of torch needs are in memory afterwards."""
    from bali_benchmarks.performance.growth import random_batch, training

    tiny = training(method, [3, 4, 2], 100)
    for _ in range(2):
        tiny.step(*random_batch(8, [3, 4, 2]))


def _start_count() -> int:
    (_PROCESS / "clear_refs").write_text("5")  # VmHWM becomes what is held now
    return _status("VmRSS")


def _status(name: str) -> int:
    line = next(line for line in (_PROCESS / "status").read_text().splitlines() if line.startswith(f"{name}:"))
    return 1024 * int(line.split()[1])


if __name__ == "__main__":
    sys.stdout.write(json.dumps(measure(**json.loads(sys.argv[1]))))
