"""Times that can be compared: the competitors take turns, so that whatever else the machine does hits all of them alike."""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

Clock = Callable[[], float]


@dataclass(frozen=True)
class Timings:
    """Seconds of one call, by name, one for each round."""

    seconds: dict[str, list[float]]

    def median(self, name: str) -> float:
        return statistics.median(self.seconds[name])

    def ratio(self, name: str, to: str) -> float:
        """Of the medians."""
        return self.median(name) / self.median(to)

    def quartiles_of_ratio(self, name: str, to: str) -> tuple[float, float]:
        """Lower and upper quartile of the ratios within each round: how much the machine disturbs the comparison."""
        ratios = [own / other for own, other in zip(self.seconds[name], self.seconds[to], strict=True)]
        lower, _, upper = statistics.quantiles(ratios, n=4) if len(ratios) > 1 else ratios * 3
        return lower, upper


def interleaved(
    callables: Mapping[str, Callable[[], object]],
    rounds: int = 20,
    warmup: int = 3,
    *,
    repeats: int = 1,
    clock: Clock = time.perf_counter,
) -> Timings:
    """Call every callable `repeats` times in a row in each round, after `warmup` rounds that are not timed.

    The one that begins changes from round to round: none always follows the one that leaves the caches worst.
    """
    names = list(callables)
    seconds: dict[str, list[float]] = {name: [] for name in names}
    gc.collect()
    for turn in range(warmup + rounds):
        first = turn % len(names)
        for name in names[first:] + names[:first]:
            call = callables[name]
            start = clock()
            for _ in range(repeats):
                call()
            elapsed = clock() - start
            if turn >= warmup:
                seconds[name].append(elapsed / repeats)
    return Timings(seconds)
