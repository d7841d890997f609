"""docs/learning.md, from the lines of `bali-benchmarks learning`."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from statistics import mean, stdev
from typing import Any

from bali_benchmarks.learning.labels import N_VALIDATION, TASKS, labels_to
from bali_benchmarks.learning.optimisation import FUNCTIONS
from bali_benchmarks.performance.measurement import Line, paragraph, table

Bar = tuple[str, str, str]


def to_markdown(lines: Sequence[Line]) -> str:
    text = ["# Learning that goes on", ""]
    text += paragraph(
        "The posterior of one fit as the prior of the next (`bali.fit(..., prior=fitted)`), rows to label next",
        "(`bali.active.query`), one more row without training (`fitted.condition`), and BoTorch (`bali.BoTorchModel`);",
        "the tutorials show each. Written by `bali-benchmarks learning`, from results/learning.jsonl.",
    )
    text += ["", *table(("what is wanted", "how it is", ""), bars(lines))]
    for title, section in (
        ("Tasks one after the other", _continual),
        ("Which label next", _labels),
        ("Optimisation", _optimisation),
    ):
        found = section(lines)
        if found:
            text += ["", f"## {title}", "", *found]
    return "\n".join(text) + "\n"


def of(lines: Iterable[Line], **key: Any) -> list[Line]:
    return [line for line in lines if key.items() <= line.items()]


def bars(lines: Sequence[Line]) -> list[Bar]:
    found: list[Bar] = []
    for tasks, limit in ((10, 0.946), (20, 0.91)):
        found.append(_accuracy(f"permuted MNIST, {tasks} tasks, 100-100", of(lines, study="permuted", tasks=tasks), limit))
    found.append(_accuracy("split MNIST, 5 tasks, an output layer each", of(lines, study="split", tasks=5), 0.989))
    runs = _runs(of(lines, study="labels", what="mnist", method="query"))
    for accuracy, limit in ((0.9, 70), (0.95, 200)):
        counts = [labels_to(run, accuracy) for run in runs]
        known = [count for count in counts if count is not None]
        what = f"labels to {accuracy:.0%} on MNIST with LeNet, at most {limit}"
        if not counts:
            found.append((what, "not run yet", ""))
        elif len(known) < len(counts):
            found.append((what, f"not reached by {len(counts) - len(known)} of {_seeds(counts)}", "missed"))
        else:
            found.append((what, f"{mean(known):.0f} ({_seeds(known)})", _verdict(mean(known) <= limit)))
    for name in ("airfoil", "powerplant"):
        ratios = _paired(lines, "labels", name, ("query", "random"), "labels", 200, "score")
        what = f"{name}, RMSE after 200 labels over that of random ones, at most .85"
        found.append(_ratio(what, ratios, 0.85))
    for name in FUNCTIONS:
        last = sum(FUNCTIONS[name])
        regrets = _paired(lines, "optimisation", name, ("network", "process"), "evaluations", last, "regret")
        word = "below" if name == "ackley10" else "no more than"
        found.append(_regret(f"{name}, simple regret {word} that of BoTorch's SingleTaskGP", regrets))
    times = [line["milliseconds"] for line in of(lines, study="condition")]
    what = "`condition` of a row, 10-50-50-1, four members, at most 20 ms"
    if times:
        found.append((what, f"{mean(times):.1f} ms by the clock ({_seeds(times)})", _verdict(mean(times) <= 20)))
    else:
        found.append((what, "not run yet", ""))
    return found


def _verdict(is_met: bool) -> str:
    return "met" if is_met else "missed"


def _seeds(values: Sequence[Any]) -> str:
    return f"{len(values)} seed{'s' if len(values) > 1 else ''}"


def _accuracy(what: str, lines: Sequence[Line], limit: float) -> Bar:
    what = f"{what}: mean accuracy, at least {limit:.1%}"
    if not lines:
        return what, "not run yet", ""
    value = mean(line["accuracy"] for line in lines)
    return what, f"{value:.2%} ({_seeds(lines)})", _verdict(value >= limit)


def _paired(
    lines: Sequence[Line], study: str, what: str, methods: tuple[str, str], count: str, at: int, value: str
) -> list[tuple[float, float]]:
    """(first method, second method) of the seeds that both have, at so many labels or evaluations."""
    ours, theirs = (
        {line["seed"]: line[value] for line in of(lines, study=study, what=what, method=m) if line[count] == at}
        for m in methods
    )
    return [(ours[seed], theirs[seed]) for seed in sorted(set(ours) & set(theirs))]


def _ratio(what: str, pairs: Sequence[tuple[float, float]], limit: float) -> Bar:
    if not pairs:
        return what, "not run yet", ""
    value = mean(a for a, _ in pairs) / mean(b for _, b in pairs)
    return what, f"{value:.2f} ({_seeds(pairs)})", _verdict(value <= limit)


def _regret(what: str, pairs: Sequence[tuple[float, float]]) -> Bar:
    if not pairs:
        return what, "not run yet", ""
    ours, theirs = (mean(part) for part in zip(*pairs, strict=True))
    return what, f"{ours:.3g}, the process {theirs:.3g} ({_seeds(pairs)})", _verdict(ours <= theirs)


def _runs(lines: Sequence[Line]) -> list[list[Line]]:
    """Complete runs, a list of lines for each seed."""
    groups: dict[int, list[Line]] = defaultdict(list)
    for line in lines:
        groups[line["seed"]].append(line)
    return [run for run in groups.values() if any(line.get("is_last") for line in run)]


def _spread(values: Sequence[float], digits: int) -> str:
    return f"{mean(values):.{digits}f}" + (f" ± {stdev(values) / len(values) ** 0.5:.{digits}f}" if len(values) > 1 else "")


def _continual(lines: Sequence[Line]) -> list[str]:
    text: list[str] = []
    for study, words in (
        (
            "permuted",
            "Permuted MNIST: one network 784-100-100-10, pixels in another order in each task, 60,000 rows, none kept.",
        ),
        ("split", "Split MNIST: two digits a task, 784-256-256-2, the output layer new in each task."),
    ):
        own = of(lines, study=study)
        if own:
            rows = []
            for tasks in sorted({line["tasks"] for line in own}):
                here = of(own, tasks=tasks)
                first, last = (mean(line["accuracies"][i] for line in here) for i in (0, -1))
                rows.append(
                    (
                        str(tasks),
                        f"{mean(line['accuracy'] for line in here):.4f}",
                        f"{first:.4f}",
                        f"{last:.4f}",
                        f"{mean(line['steps'] for line in here):.0f}",
                        str(len(here)),
                    )
                )
            text += ["", *paragraph(words), ""]
            text += table(("tasks", "mean accuracy", "of the first", "of the last", "steps", "seeds"), rows)
    return text[1:]


def _labels(lines: Sequence[Line]) -> list[str]:
    text: list[str] = []
    for name, task in TASKS.items():
        rows = []
        for labels in sorted({line["labels"] for line in of(lines, study="labels", what=name)}):
            cells = [str(labels)]
            for method in ("query", "random"):
                scores = [line["score"] for line in of(lines, study="labels", what=name, method=method, labels=labels)]
                cells.append(f"{_spread(scores, 3)} ({len(scores)})" if scores else "–")
            rows.append(tuple(cells))
        if rows:
            score = "accuracy" if task.is_classes else "RMSE over the deviation of y"
            text += [
                "",
                *paragraph(
                    f"{name}: {score} (number of seeds), rows chosen by {task.method}, {task.each} at a time.", _notes(name)
                ),
                "",
            ]
            text += table(("labels", "chosen", "at random"), rows)
    return text[1:]


def _notes(name: str) -> str:
    return (
        f"Held-out rows are {N_VALIDATION} more labels, the same for both; a run ends at {TASKS[name].enough:.0%}."
        if name == "mnist"
        else "The model is `bali.surrogate`, which holds nothing out."
    )


def _optimisation(lines: Sequence[Line]) -> list[str]:
    rows = []
    for name, (first, queries) in FUNCTIONS.items():
        for method, title in (("network", "`bali.surrogate`"), ("process", "`SingleTaskGP`")):
            own = of(lines, study="optimisation", what=name, method=method)
            at_end = [line["regret"] for line in own if line["evaluations"] == first + queries]
            if at_end:
                seconds = mean(line["seconds"] for line in own if line["evaluations"] > first)
                rows.append((name, title, f"{first} + {queries}", _spread(at_end, 3), f"{seconds:.1f}", str(len(at_end))))
    words = (
        "Both by BoTorch's logarithm of the expected improvement, one point at a time. The network is `bali.surrogate`, made"
        " anew when there is a tenth more rows; between that its output layer takes in what was found."
    )
    return (
        [
            *paragraph(words),
            "",
            *table(("function", "model", "evaluations", "simple regret", "seconds a query", "seeds"), rows),
        ]
        if rows
        else []
    )
