"""How the time of a step grows with the width of the layers, for `bali.fit` and for Adam."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial

from bali_benchmarks.performance import step_time
from bali_benchmarks.performance.measurement import Bar, Bench, Line, Measurement, median_line, paragraph, table

WIDTHS, ROWS = (256, 512, 1024, 2048, 4096), 2048
#: That the exponent of BALI may be larger than that of Adam.
LIMIT = 0.1


def jobs(
    *, widths: Sequence[int] = WIDTHS, rows: int = ROWS, rounds: int = 2, repeats: int = step_time.REPEATS
) -> list[Measurement]:
    def job(width: int) -> Measurement:
        case = step_time.Case(partial(step_time.wide, width), (784,), rows, None)
        return Measurement({"width": width}, lambda: _measured(case, rounds, repeats))

    return [job(width) for width in widths]


def _measured(case: step_time.Case, rounds: int, repeats: int) -> list[Line]:
    return [line | {"batch": case.batch} for line in step_time.measure(case, rounds=rounds, repeats=repeats)]


def exponent(sizes: Sequence[float], times: Sequence[float]) -> float:
    """The slope of the line through the logarithms, by least squares."""
    x, y = ([math.log(value) for value in values] for values in (sizes, times))
    mean_x, mean_y = sum(x) / len(x), sum(y) / len(y)
    return sum((a - mean_x) * (b - mean_y) for a, b in zip(x, y, strict=True)) / sum((a - mean_x) ** 2 for a in x)


def exponents(lines: Sequence[Line]) -> tuple[float, float]:
    """Of BALI and of Adam."""
    sizes = [line["width"] for line in lines]
    return exponent(sizes, [line["ms"] for line in lines]), exponent(sizes, [line["adam_ms"] for line in lines])


def bars(lines: Sequence[Line]) -> list[Bar]:
    if len({line["width"] for line in lines}) < 2:
        return []
    own, adam = exponents(lines)
    return [Bar("exponent of the step time in the width, above Adam's", own - adam, LIMIT)]


def section(lines: Sequence[Line]) -> list[str]:
    rows = [(f"{line['width']:,}", f"{line['ms']:.0f}", f"{line['adam_ms']:.0f}", f"{line['ratio']:.2f}") for line in lines]
    text = [f"The network 784-width-width-10 with batches of {lines[0]['batch']:,} rows, measured as above."]
    if len({line["width"] for line in lines}) > 1:
        text.append("Time is proportional to the width to the power of {:.2f}, Adam's of {:.2f}.".format(*exponents(lines)))
    header = ("width", "step, ms", "Adam's step, ms", "ratio")
    return [*paragraph(*text, median_line(lines, "rounds")), "", *table(header, rows)]


BENCH = Bench("widths", "Growth with the width", jobs, section, bars, threads=1)
