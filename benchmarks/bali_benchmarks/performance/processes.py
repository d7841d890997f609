"""How much faster a step is by several processes, and whether the cost model knows."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Sequence

from bali_benchmarks.performance.distributed_model import Machine, cost
from bali_benchmarks.performance.distributed_process import PARTS
from bali_benchmarks.performance.measurement import Bar, Bench, Line, Measurement, paragraph, table

SIZES = (256, 512, 512, 512, 512, 10)
#: On paper: a network, rows of a batch for each GPU, and the numbers of GPUs.
PAPER_SIZES = (4096, *[4096] * 24, 1000)
PAPER_ROWS, PAPER_GPUS, PAPER_DATA = 4096, (1, 8, 64, 1000), 1_000_000_000
#: An NVIDIA A100 (data sheet, 2020: 19.5 TFLOP/s in float32, 9.7 in float64) with a network of 200 Gbit/s, at one half of
#: that in products, one fifth in factorisations, and four fifths in messages.
GPU = Machine(statistics=0.5 * 19.5e12, factorisation=0.2 * 9.7e12, bytes=0.8 * 25e9, latency=10e-6)


def run_processes(sizes: Sequence[int], rows: int, counts: Sequence[int], rounds: int, warmup: int) -> list[dict[str, Line]]:
    """What each of as many processes as the largest count measured."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    n = max(counts)
    shared = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": str(n), "OMP_NUM_THREADS": "1"}
    request = {"sizes": list(sizes), "rows": rows, "counts": list(counts), "rounds": rounds, "warmup": warmup}
    command = [sys.executable, "-m", "bali_benchmarks.performance.distributed_process", json.dumps(request)]
    processes = [
        subprocess.Popen(
            command,
            env=os.environ | shared | {"RANK": str(r), "LOCAL_RANK": str(r)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for r in range(n)
    ]
    done = [process.communicate() for process in processes]
    for process, (_, error) in zip(processes, done, strict=True):
        if process.returncode:
            raise RuntimeError(f"a process of the measurement failed: {error.strip()[-2000:]}")
    return [json.loads(out.splitlines()[-1]) for out, _ in done]


def measure(sizes: Sequence[int], rows: int, counts: Sequence[int], rounds: int, warmup: int) -> list[Line]:
    """A part takes as long as on the process where it takes longest; messages, where nobody was waited for."""
    found = run_processes(sizes, rows, counts, rounds, warmup)
    speed, plain = found[0]["speed"], found[0]["parts"]["plain"]["step"]
    alone = found[0]["parts"]["1"]
    one = cost(sizes, rows, 1)
    machine = Machine(
        statistics=one.statistics / alone["statistics"],
        factorisation=one.factorisation / alone["factorisation"],
        bytes=speed["bytes_per_second"],
        latency=speed["latency"],
    )
    lines: list[Line] = []
    for count in counts:
        own = [process["parts"][str(count)] for process in found[:count]]
        parts = {
            "statistics": max(p["statistics"] for p in own),
            "messages": min(p["messages"] for p in own),
            "factorisation": max(p["factorisation"] for p in own),
        }
        expected = cost(sizes, rows, count)
        line: Line = {"processes": count, "ms": 1e3 * max(p["step"] for p in own), "plain_ms": 1e3 * plain}
        line |= {f"{part}_ms": 1e3 * seconds for part, seconds in parts.items()}
        line |= {f"model_{part}_ms": 1e3 * s for part, s in expected.seconds(machine, count).items()}
        line |= {
            "work_efficiency": alone["work"] / count / max(p["work"] for p in own),
            "efficiency": plain / count / max(p["step"] for p in own),
            "summed_bytes": own[0]["summed"],
            "model_summed_bytes": float(expected.summed),
            "results_bytes": own[0]["results"],
            "model_results_bytes": float(expected.results),
            "bytes_per_second": machine.bytes,
        }
        lines.append(line | {"sizes": list(sizes), "rows": rows, "rounds": rounds, "threads": 1, "cores": os.cpu_count()})
    return lines


def jobs(
    *, sizes: Sequence[int] = SIZES, rows: int = 4096, counts: Sequence[int] = (1, 2, 4), rounds: int = 15, warmup: int = 2
) -> list[Measurement]:
    return [Measurement({}, lambda: measure(sizes, rows, counts, rounds, warmup))]


def bars(_lines: Sequence[Line]) -> list[Bar]:
    return []  # reported, not limited: how many processes a machine can carry is its own affair


def section(lines: Sequence[Line]) -> list[str]:
    first = lines[0]
    measured = [
        (
            str(line["processes"]),
            f"{line['ms']:.1f}",
            *(f"{line[f'{part}_ms']:.1f} ({line[f'model_{part}_ms']:.1f})" for part in PARTS),
            f"{line['work_efficiency']:.2f}",
            f"{line['efficiency']:.2f}",
        )
        for line in lines
    ]
    sent = [
        (
            str(line["processes"]),
            *(
                f"{line[key] / 1e6:.2f}"
                for key in ("summed_bytes", "model_summed_bytes", "results_bytes", "model_results_bytes")
            ),
        )
        for line in lines
    ]
    return [
        *paragraph(
            f"The network {'-'.join(map(str, first['sizes']))}, {first['rows']:,} rows in a step of all processes together,",
            f"float32, one thread a process, on a machine with {first['cores']} cores. One process that is alone takes",
            f"{first['plain_ms']:.1f} ms a step. Processes talk by gloo on the same machine,",
            f"{first['bytes_per_second'] / 1e6:.0f} MB a second in a sum of two. In brackets, what the cost model of",
            "[Several processes](distributed.md) says, whose speeds are those of one process. The efficiency of the",
            "work is that of statistics and factorisation by processor time, as with a core for every process; the other",
            "one is of the whole step by the clock, messages included,",
            f"beside the process that is alone. Medians of {first['rounds']} rounds, in which the numbers of processes",
            "take turns.",
        ),
        "",
        *table(
            ("processes", "step, ms", *(f"{part}, ms" for part in PARTS), "efficiency of the work", "efficiency"),
            measured,
        ),
        "",
        *paragraph("Bytes of a step, in MB, as counted and as the model has them:"),
        "",
        *table(("processes", "sums", "model", "results", "model"), sent),
        "",
        *on_paper(),
    ]


def on_paper() -> list[str]:
    """The same model on GPUs that nobody here has."""
    rows = []
    for gpus in PAPER_GPUS:
        seconds = cost(PAPER_SIZES, PAPER_ROWS * gpus, gpus).seconds(GPU, gpus)
        step = sum(seconds.values())
        hours = PAPER_DATA / (PAPER_ROWS * gpus) * step / 3600
        cells = [f"{1e3 * seconds[part]:.0f}" for part in PARTS]
        rows.append((f"{gpus:,}", f"{PAPER_ROWS * gpus:,}", *cells, f"{1e3 * step:.0f}", f"{hours:,.1f}"))
    return [
        *paragraph(
            f"On paper: {len(PAPER_SIZES) - 1} layers of width 4,096 on GPUs with",
            f"{GPU.statistics / 1e12:.1f} TFLOP/s for statistics,",
            f"{GPU.factorisation / 1e12:.1f} for factorisations and {GPU.bytes / 1e9:.0f} GB/s between them (one half and",
            "one fifth of an A100's peak in float32 and float64, and four fifths of 200 Gbit/s),",
            f"{PAPER_ROWS:,} rows a GPU, a billion rows in all. Nothing of this was measured.",
        ),
        "",
        *table(("GPUs", "rows a step", *(f"{part}, ms" for part in PARTS), "step, ms", "hours for a billion rows"), rows),
    ]


BENCH = Bench("distributed", "Several processes", jobs, section, bars, threads=1)
