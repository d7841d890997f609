"""The part of docs/networks.md about scaled rules."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from bali_benchmarks.networks.networks_summary import Average, average
from bali_benchmarks.networks.scaled_rules import AS_IT_IS, CHEAP, FACTORS, NAMES
from bali_benchmarks.performance.measurement import Line, paragraph, table

#: Nats that a scaled rule may cost on average over tasks.
MOST = 0.02
_SHOWN = {3.0: "× 3", 1.0 / 3.0: "÷ 3"}


def section(lines: Sequence[Line]) -> list[str]:
    """What each scaled rule costs on each task that has lines."""
    if not lines:
        return []
    body = [
        (name, *("–" if value is None else value.text(3, signed=True) for value in of_tasks.values()), f"{mean:+.3f}")
        for name, of_tasks, mean in _costs(lines)
    ]
    return [
        *paragraph(
            "Each of the rules (`src/bali/training/rules.py`) and the width that held-out rows choose, three times as large",
            "and three times as small: test NLL less that of the rules as they are, on the same seed and rows. Trainings",
            "that differ in anything at all differ by chance, too. Written by `bali-benchmarks networks --scaled`.",
        ),
        "",
        *table(("rule", *(f"`{task}`" for task in _tasks(lines)), "mean"), body),
    ]


def bar(lines: Sequence[Line]) -> tuple[str, str, str]:
    """Whether every mean over tasks is small enough; open until all rules are scaled on all the cheap tasks."""
    what = f"a rule scaled by 3 either way costs at most {MOST} nats, mean of the tasks that were tried"
    costs = _costs(lines)
    if not costs:
        return what, "–", "not measured"
    worst, _, most = max(costs, key=lambda found: found[2])
    complete = sum(value is not None for _, of_tasks, _ in costs for value in of_tasks.values())
    is_complete = set(CHEAP) <= set(_tasks(lines)) and complete == len(NAMES) * len(FACTORS) * len(_tasks(lines))
    how = f"{most:+.3f} at most ({worst}), on {', '.join(_tasks(lines))}"
    return what, how, "open" if not is_complete else "met" if most <= MOST else "missed"


def _tasks(lines: Sequence[Line]) -> list[str]:
    return list(dict.fromkeys(line["task"] for line in lines))


def _costs(lines: Sequence[Line]) -> list[tuple[str, dict[str, Average | None], float]]:
    """Of every rule and factor that was measured: its name, the cost on each task, and their mean."""
    found = []
    for rule, title in NAMES.items():
        for factor in FACTORS:
            of_tasks = {task: cost(lines, task, rule, factor) for task in _tasks(lines)}
            means = [value.mean for value in of_tasks.values() if value is not None]
            if means:
                found.append((f"{title} {_SHOWN[factor]}", of_tasks, statistics.fmean(means)))
    return found


def cost(lines: Sequence[Line], task: str, rule: str, factor: float) -> Average | None:
    """NLL more than with the rules as they are, over the seeds that both have."""
    scaled, plain = _by_seed(lines, task, rule, factor), _by_seed(lines, task, *AS_IT_IS)
    return average([scaled[seed] - plain[seed] for seed in sorted(scaled.keys() & plain.keys())])


def _by_seed(lines: Sequence[Line], task: str, rule: str, factor: float) -> dict[int, float]:
    wanted = {"task": task, "rule": rule, "factor": round(factor, 4)}
    return {line["seed"]: line["nll"] for line in lines if wanted.items() <= line.items()}
