"""What the race says: from the curves of all methods to ratios of times."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from bali.predictive.plots import BLUE, MUTED, VERMILLION, new_figure
from bali_benchmarks.performance.measurement import Bar, Bench, Line, paragraph, table
from bali_benchmarks.performance.quality import BALI, DROPOUT, LEARNING_RATES, jobs
from bali_benchmarks.performance.trainings import AveragedTraining

#: BALI's time to Adam's best NLL, at most so many times another method's time to its own best.
LIMITS = {"Adam": 1.0, "MC dropout": 0.5}
OF_FIRST_VERSION = "In these runs of version 0.1.0 it computed U at every fifth step only, an option that is gone."
#: Likewise for steps, of Adam's.
STEP_LIMIT = 0.5


@dataclass(frozen=True)
class RaceComparison:
    """BALI with the other method, at that one's best learning rate, in one race."""

    other: Line
    own_steps: int | None  # until BALI was as good as the other ever was; None where it never was
    own_seconds: float | None

    @property
    def ratio(self) -> float:
        return math.inf if self.own_seconds is None else self.own_seconds / self.other["seconds_to_best"]

    @property
    def step_ratio(self) -> float:
        return math.inf if self.own_steps is None else self.own_steps / self.other["steps_to_best"]


def comparison(lines: Sequence[Line], seed: int, method: str) -> RaceComparison:
    race = [line for line in lines if line["seed"] == seed]
    other = min((line for line in race if line["method"] == method), key=lambda line: float(line["best_nll"]))
    (own,) = (line for line in race if line["method"] == BALI)
    reached = (point[:2] for point in own["curve"] if point[2] <= other["best_nll"])
    return RaceComparison(other, *next(reached, (None, None)))


def seeds(lines: Sequence[Line]) -> list[int]:
    return sorted({line["seed"] for line in lines})


def bars(lines: Sequence[Line]) -> list[Bar]:
    found = []
    for method, limit in LIMITS.items():
        ratios = []
        for seed in seeds(lines):
            own, other = comparison(lines, seed, "Adam").own_seconds, comparison(lines, seed, method).other
            ratios.append(math.inf if own is None else own / other["seconds_to_best"])
        what = f"{BALI}: time to Adam's best validation NLL, of {method}'s time to its own best"
        found.append(_bar(what, ratios, limit))
    what = f"{BALI}: steps to Adam's best validation NLL, of Adam's own"
    return [*found, _bar(what, [comparison(lines, seed, "Adam").step_ratio for seed in seeds(lines)], STEP_LIMIT)]


def _bar(what: str, ratios: list[float], limit: float) -> Bar:
    ratio = statistics.median(ratios)
    return Bar(what, ratio if math.isfinite(ratio) else None, limit)


def section(lines: Sequence[Line]) -> list[str]:
    first = lines[0]
    rows = []
    for seed in seeds(lines):
        for method in LIMITS:
            c = comparison(lines, seed, method)
            never = c.own_seconds is None
            rows.append(
                (
                    str(seed),
                    method,
                    f"{c.other['learning_rate']:g}",
                    f"{c.other['best_nll']:.4f}",
                    f"{c.other['steps_to_best']:,}",
                    "never" if never else f"{c.own_steps:,}",
                    "–" if never else f"{c.step_ratio:.2f}",
                    f"{c.other['seconds_to_best']:.1f}",
                    "never" if never else f"{c.own_seconds:.1f}",
                    "–" if never else f"{c.ratio:.2f}",
                )
            )
    best = ", ".join(
        f"{line['best_nll']:.4f} after {line['seconds_to_best']:.1f} s" for line in lines if line["method"] == BALI
    )
    own = AveragedTraining
    rates = ", ".join(f"{rate:g}" for rate in LEARNING_RATES)
    return [
        *paragraph(
            f"The network 784-256-256-10 on {first['data']}, batches of {first['batch']:,}, with validation rows",
            "taken from the",
            "end of the training rows. How long BALI trains until it is as good on them as the other method",
            "ever is, in steps and seconds, and how",
            f"long that one took. Adam and MC dropout (rate {DROPOUT:g}) race with learning rates {rates}, and",
            "the best is taken.",
            f"BALI has a step size of {own.STEP_SIZE:g}, a momentum of {own.MOMENTUM:g}, exact input statistics,",
            f"and predicts from averaged means (rate {own.AVERAGE_RATE:g}).",
            *([OF_FIRST_VERSION] if any(line.get("version") == "0.1.0" for line in lines) else []),
            f"All methods take turns of {first['chunk']} steps and stop when {first['patience']} steps brought",
            "nothing. Clocks",
            f"stand still during validation ({first['samples']} samples for BALI and MC dropout). Threads:",
            f"{first['threads']}.",
        ),
        "",
        *table(
            (
                *("seed", "method", "learning rate", "its best NLL", "after steps", f"{BALI}, steps", "ratio"),
                *("after, s", f"{BALI}, s", "ratio"),
            ),
            rows,
        ),
        "",
        f"The lowest NLL of {BALI}, by seed: {best}.",
        "",
        "![Validation NLL against training time](images/performance-quality.svg)",
    ]


def draw(lines: Sequence[Line], path: Path) -> None:
    """Validation NLL against seconds in the first race: BALI, and the others at their best learning rate."""
    seed = seeds(lines)[0]
    figure, (axes,) = new_figure(width=6.0, height=3.6)
    own = next(line for line in lines if line["seed"] == seed and line["method"] == BALI)
    shown = [(own, BLUE)]
    shown += [(comparison(lines, seed, m).other, c) for m, c in zip(LIMITS, (VERMILLION, MUTED), strict=True)]
    for line, colour in shown:
        _, seconds, nll = zip(*line["curve"], strict=True)
        axes.plot(seconds, nll, color=colour, label=line["method"], linewidth=1.5)
    least = min(line["best_nll"] for line, _ in shown)
    axes.set_ylim(0.9 * least, 3 * least)
    axes.set_xlabel("training time, s")
    axes.set_ylabel("validation NLL")
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False)
    figure.savefig(path, metadata={"Date": None})


BENCH = Bench("quality", "Time to quality", jobs, section, bars)
