"""The most memory that training holds at once, for `bali.fit` and for Adam, each size in processes of their own.

Linux tells a process the most memory it ever held (VmHWM), and lets it start that count anew. The allocator is told to
return what is freed at once, so that the peak is that of tensors alive at the same time and not of its habits.
`python -m bali_benchmarks.performance.memory` is one such process.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from torch import Tensor

from bali.inference.joint import JointLayer
from bali.training import course as courses
from bali_benchmarks.networks.task_networks import perceptron
from bali_benchmarks.performance import step_time
from bali_benchmarks.performance.measurement import Bar, Bench, Line, Measurement, paragraph, table
from bali_benchmarks.performance.trainings import AdamTraining, shuffled_batches

METHODS = ("BALI", "Adam")
N_INPUTS, N_CLASSES = 784, 10
BASE = {"rows": 2048, "width": 256, "depth": 2}
AXES: dict[str, tuple[int, ...]] = {
    "rows": (256, 512, 1024, 2048, 4096, 8192),
    "width": (64, 128, 256, 512, 1024, 2048),
    "depth": (1, 2, 4, 8),
}
#: Peak without the factors, of Adam's.
LIMIT = 2.0
#: In which everything has happened that happens now and then.
STEPS = 8

_PROCESS = Path("/proc/self")
_ALLOCATOR = {"MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_TRIM_THRESHOLD_": "65536", "MALLOC_ARENA_MAX": "1"}


def peak_in_new_process(method: str, rows: int, width: int, depth: int) -> dict[str, int]:
    """Bytes above the start of a training: the peak, and those of BALI's factors."""
    if not (_PROCESS / "clear_refs").exists():
        raise OSError("peak memory is read from /proc, which only Linux has: run this measurement there")
    request = {"method": method, "rows": rows, "width": width, "depth": depth, "threads": torch.get_num_threads()}
    command = [sys.executable, "-m", "bali_benchmarks.performance.memory", json.dumps(request)]
    done = subprocess.run(command, env=os.environ | _ALLOCATOR, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"the process that measures memory failed: {done.stderr.strip()[-2000:]}")
    result: dict[str, int] = json.loads(done.stdout)
    return result


def peak(method: str, rows: int, width: int, depth: int, threads: int) -> dict[str, int]:
    """In this process. The data are made before the count begins, weights and all that training adds after it."""
    torch.set_num_threads(threads)
    _steps(method, 8, 4, 1)  # code and buffers that every use of torch needs are in memory afterwards
    x, y = _rows(rows)
    (_PROCESS / "clear_refs").write_text("5")  # VmHWM becomes what is held now
    start = _status("VmRSS")
    layers = _steps(method, rows, width, depth, x, y)
    return {"peak": _status("VmHWM") - start, "factors": factor_bytes(layers)}


def _rows(n: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    return torch.rand(n, N_INPUTS, generator=generator), torch.randint(N_CLASSES, (n,), generator=generator)


def _steps(
    method: str, rows: int, width: int, depth: int, x: Tensor | None = None, y: Tensor | None = None
) -> Mapping[str, JointLayer]:
    """The layers after them, of BALI."""
    if x is None or y is None:
        x, y = _rows(rows)
    module = perceptron(N_INPUTS, [width] * depth, N_CLASSES)
    if method == "Adam":
        training = AdamTraining(module, 1e-3)
        batches = shuffled_batches(x, y, rows, torch.Generator().manual_seed(0))
        for _ in range(STEPS):
            training.step(*next(batches))
        return {}
    job, course = step_time.fit_course(module, x, y, rows)
    for _ in range(STEPS):
        courses.one_step(job, course)
    return course.layers


def factor_bytes(layers: Mapping[str, JointLayer]) -> int:
    """What is kept of all layers between steps that an optimizer has nothing like: A, S, A + δI, factors and inverses."""
    found = []
    for layer in layers.values():
        assert layer.inputs is not None
        assert layer.damped is not None
        assert layer.gradients is not None
        found += [layer.inputs.values, layer.damped.values, layer.gradients, *layer.damped._kept.values()]
    return sum({t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in found}.values())


def _status(name: str) -> int:
    line = next(line for line in (_PROCESS / "status").read_text().splitlines() if line.startswith(f"{name}:"))
    return 1024 * int(line.split()[1])


def measure(axis: str, value: int, base: Mapping[str, int]) -> list[Line]:
    at = dict(base) | {axis: value}
    own, adam = (peak_in_new_process(method, **at) for method in METHODS)
    line = {"peak": own["peak"], "factors": own["factors"], "adam_peak": adam["peak"], "threads": torch.get_num_threads()}
    return [line | {"ratio": (own["peak"] - own["factors"]) / adam["peak"], "base": dict(base)}]


def jobs(*, axes: Mapping[str, Sequence[int]] = AXES, base: Mapping[str, int] = BASE) -> list[Measurement]:
    def job(axis: str, value: int) -> Measurement:
        return Measurement({"axis": axis, "value": value}, lambda: measure(axis, value, base))

    return [job(axis, value) for axis, values in axes.items() for value in values]


def bars(lines: Sequence[Line]) -> list[Bar]:
    return [Bar("peak memory without the factors, of Adam's, at worst", max(line["ratio"] for line in lines), LIMIT)]


def section(lines: Sequence[Line]) -> list[str]:
    base = lines[0]["base"]
    rows = [
        (
            f"{line['axis']} {line['value']:,}",
            *(f"{line[key] / 2**20:,.0f}" for key in ("peak", "factors", "adam_peak")),
            f"{line['ratio']:.2f}",
        )
        for line in lines
    ]
    return [
        *paragraph(
            f"The most that {STEPS} steps of `bali.fit` and of Adam hold at once above what was held before, in MB, in",
            f"processes of their own. Perceptrons of {base['depth']} hidden layers of {base['width']} with batches of",
            f"{base['rows']:,} rows of {N_INPUTS} inputs, but for what the first column says. Factors are what is kept of",
            "all layers between steps that an optimizer has nothing like: A, S, and A + δI with its inverse.",
            "The ratio is without them, and Adam's includes the weights, gradients and moments of both.",
        ),
        "",
        *table(("size", "peak, MB", "factors, MB", "Adam's peak, MB", "peak without factors, of Adam's"), rows),
    ]


BENCH = Bench("memory", "Memory", jobs, section, bars, threads=1)


if __name__ == "__main__":
    sys.stdout.write(json.dumps(peak(**json.loads(sys.argv[1]))))
