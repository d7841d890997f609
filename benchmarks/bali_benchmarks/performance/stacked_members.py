"""Twenty small networks trained as one batch of matrices, and one alone, beside what their arithmetic takes."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

import bali
from bali.estimators.mlp import stacked_mlp
from bali_benchmarks import datasets
from bali_benchmarks.performance.arithmetic import batched_product, step_flops
from bali_benchmarks.performance.measurement import Bar, Bench, Line, Measurement, median_line, paragraph, table
from bali_benchmarks.performance.timing import interleaved

SIZES = (6, 50, 1)
N_ROWS, MEMBERS = 276, 20
#: Milliseconds for a step of each of the members; of a network alone; and so many times the arithmetic is enough too.
MEMBER_LIMIT, SINGLE_LIMIT, TIMES_ARITHMETIC = 0.10, 0.35, 3.0


def yacht_rows(n: int) -> tuple[Tensor, Tensor, str]:
    """Standardised rows of the yacht data; random ones of that shape where it cannot be had."""
    try:
        split = datasets.load("yacht").split(0)
    except datasets.DataError:
        generator = torch.Generator().manual_seed(0)
        x = torch.randn(n, SIZES[0], generator=generator)
        return x, x.sin().sum(-1) + 0.1 * torch.randn(n, generator=generator), "random rows"
    x, y = (torch.as_tensor(values[:n]) for values in (split.X_train, split.y_train))
    x, y = ((values - values.mean(0)) / values.std(0) for values in (x, y))
    return x.float(), y.float(), "yacht"


def network(members: int | None, generator: torch.Generator) -> nn.Sequential:
    module = (
        nn.Sequential(nn.Linear(SIZES[0], SIZES[1]), nn.ReLU(), nn.Linear(SIZES[1], SIZES[2]))
        if members is None
        else stacked_mlp(members, SIZES, "relu")
    )
    with torch.no_grad():
        for name, variance in {"0": 1.0, "2": 1.0 / (SIZES[1] + 1)}.items():
            for parameter in module.get_submodule(name).parameters():
                parameter.normal_(0.0, variance**0.5, generator=generator)
    return module


def stepping(members: int | None, x: Tensor, y: Tensor) -> Callable[[], object]:
    """Full batches, with the paper's settings for this table."""
    generator = torch.Generator().manual_seed(0)
    inference = bali.LayerwiseInference(
        network(members, generator),
        bali.likelihoods.Gaussian(),
        len(x),
        step_size=0.3,
        ema_rate=0.2,
        prior_variance={"0": 40.0, "2": 40.0 / (SIZES[1] + 1)},
        generator=generator,
    )
    return lambda: inference.step(x, y)


def measure(*, members: int, rows: int, rounds: int, warmup: int, repeats: int) -> list[Line]:
    x, y, source = yacht_rows(rows)
    product, product_flops = batched_product(members, len(x), SIZES[1] + 1)
    calls = {"members": stepping(members, x, y), "single": stepping(None, x, y), "product": product}
    times = interleaved(calls, rounds, warmup, repeats=repeats)
    flops_per_second = product_flops / times.median("product")
    flops = sum(step_flops(SIZES, len(x)).values())
    own, limit = 1e3 * times.median("members") / members, 1e3 * flops / flops_per_second
    return [
        {
            "members": members,
            "rows": len(x),
            "member_ms": own,
            "arithmetic_ms": limit,
            "times_arithmetic": own / limit,
            "flops": flops,
            "gflops_per_second": flops_per_second / 1e9,
            "single_ms": 1e3 * times.median("single"),
            "rounds": rounds,
            "data": source,
            "threads": torch.get_num_threads(),
        }
    ]


def jobs(
    *, members: int = MEMBERS, rows: int = N_ROWS, rounds: int = 40, warmup: int = 5, repeats: int = 20
) -> list[Measurement]:
    return [Measurement({}, lambda: measure(members=members, rows=rows, rounds=rounds, warmup=warmup, repeats=repeats))]


def bars(lines: Sequence[Line]) -> list[Bar]:
    (line,) = lines
    limit = max(MEMBER_LIMIT, TIMES_ARITHMETIC * line["arithmetic_ms"])
    return [
        Bar(f"{line['members']} members: step of each", line["member_ms"], limit, "ms"),
        Bar("one member alone: step", line["single_ms"], SINGLE_LIMIT, "ms"),
    ]


def section(lines: Sequence[Line]) -> list[str]:
    (line,) = lines
    cells = (
        f"{line['member_ms']:.3f}",
        f"{line['arithmetic_ms']:.3f}",
        f"{line['times_arithmetic']:.1f}",
        f"{line['single_ms']:.3f}",
    )
    return [
        *paragraph(
            f"{line['members']} networks 6-50-1 as one stack, {line['rows']} rows ({line['data']}), full",
            "batches, float32.",
            f"The arithmetic of a step is {line['flops'] / 1e6:.2f} million operations for each member, with one",
            "half of every",
            "symmetric product and triangular matrix, at the rate of a batched matrix product with the shape of",
            "its largest",
            f"that was measured in the same rounds: {line['gflops_per_second']:.0f} GFLOP/s. A member may take",
            f"{MEMBER_LIMIT}",
            f"ms or {TIMES_ARITHMETIC:.0f} times its arithmetic, whichever is more.",
            median_line(lines, "rounds"),
        ),
        "",
        *table(("member and step, ms", "its arithmetic, ms", "times arithmetic", "one network alone, ms"), [cells]),
    ]


BENCH = Bench("members", "Many small networks", jobs, section, bars, threads=1)
