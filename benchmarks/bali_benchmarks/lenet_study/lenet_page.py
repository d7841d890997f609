"""docs/lenet.md, from the lines of `bali-benchmarks lenet`."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from bali_benchmarks.lenet_study.lenet import BALI, BALI_MIXTURE, EFFECTIVE_SIZE, MEMBERS, METHODS
from bali_benchmarks.performance.measurement import Line, paragraph, table

TITLES = {"mnist": "MNIST", "fashion_mnist": "Fashion-MNIST"}
OTHER = {"mnist": "fashion_mnist", "fashion_mnist": "mnist"}


@dataclass(frozen=True)
class Goal:
    """A figure of BALI's, of one network and of a mixture, and the bound that it should keep."""

    what: str
    measured: tuple[float | None, ...]  # None where it was not measured
    bound: float
    at_least: bool

    @property
    def cells(self) -> tuple[str, ...]:
        digits = 4 if self.bound < 1 else 2
        bound = f"{'≥' if self.at_least else '≤'} {self.bound:.{digits}f}"
        return self.what, bound, *(self._verdict(value, digits) for value in self.measured)

    def _verdict(self, value: float | None, digits: int) -> str:
        if value is None:
            return "not measured"
        met = value >= self.bound if self.at_least else value <= self.bound
        return f"{value:.{digits}f}, {'met' if met else 'missed'}"


#: Of each set: the figure, its bound, and whether it should be at least that.
_GOALS = {
    "mnist": (("accuracy", "accuracy", 0.992, True), ("ece", "ECE", 0.004, False), ("auroc_entropy", "AUROC", 0.992, True)),
    "fashion_mnist": (("accuracy", "accuracy", 0.910, True), ("ece", "ECE", 0.010, False)),
}
MOST_STEP_RATIO = 2.0
_STEP_BATCH = 512


def goals(lines: Sequence[Line]) -> list[Goal]:
    """BALI's, from its longest trainings; means over seeds. The AUROC is by entropy, as in the paper."""
    found = []
    for name, wanted in _GOALS.items():
        own = [_longest([line for line in _trainings(lines, name) if line["method"] == m]) for m in (BALI, BALI_MIXTURE)]
        for key, shown, bound, at_least in wanted:
            measured = tuple(_mean(trainings, key) for trainings in own)
            found.append(Goal(f"{TITLES[name]}: {shown}", measured, bound, at_least))
    steps = [line for line in lines if line["kind"] == "step" and line["batch"] == _STEP_BATCH]
    ratio = steps[-1]["ratio"] if steps else None
    # Each network of a mixture has the same step.
    found.append(Goal(f"a step at batch {_STEP_BATCH}, of Adam's", (ratio, ratio), MOST_STEP_RATIO, at_least=False))
    return found


def to_markdown(lines: Sequence[Line]) -> str:
    text = [
        "# LeNet-5 on MNIST and Fashion-MNIST",
        "",
        *paragraph(
            "The network of LeCun et al. (1998) with rectifiers and largest values of pools, on pixels standardised by one",
            "mean and one deviation. BALI has a posterior over both convolutions and all linear layers; a mixture has",
            "several such networks from different initial weights, as `BALIClassifier` has by default. Written by",
            "`bali-benchmarks lenet`.",
        ),
        "",
        *table(("what", "bound", "one network", f"{MEMBERS} networks mixed"), [goal.cells for goal in goals(lines)]),
    ]
    for name in TITLES:
        own = _trainings(lines, name)
        if own:
            text += ["", f"## {TITLES[name]}", "", *_section(own, name)]
    steps = [line for line in lines if line["kind"] == "step"]
    if steps:
        text += ["", "## A step", "", *_step_section(steps)]
    return "\n".join(text) + "\n"


def _section(lines: Sequence[Line], name: str) -> list[str]:
    first = lines[0]
    groups: dict[tuple[str, int, int], list[Line]] = {}
    for line in lines:
        groups.setdefault((line["method"], line["n_train"], line["steps"]), []).append(line)
    rows = [
        (
            method,
            f"{n_train:,}",
            f"{steps:,}",
            str(len(own)),
            *(_with_spread(own, key) for key in ("accuracy", "nll", "ece", "auroc_entropy", "auroc_mutual_information")),
            f"{statistics.mean(line['seconds'] for line in own):.0f}",
        )
        for (method, n_train, steps), own in groups.items()
    ]
    threads = sorted({line["threads"] for line in lines})
    header = (
        "method",
        "rows",
        "steps",
        "seeds",
        "accuracy",
        "NLL",
        "ECE",
        "AUROC, entropy",
        "AUROC, mutual inf.",
        "train, s",
    )
    return [
        *paragraph(
            f"Batches of {first['batch']} rows, {first['n_test']:,} test rows, {first['samples']} samples where a method",
            f"samples. AUROC: told from {first['n_outside']:,} test images of {TITLES[OTHER[name]]}, by the entropy of the",
            "prediction or by the mutual information of class and weights, which a single network does not have. Adam is",
            "torch's, its rate falling to 0 as a cosine; dropout, Laplace (laplace-torch, Kronecker factors of the last",
            "layer, linearised, prior by the evidence) and the ensemble are trained by it likewise. A mixture is less sure",
            f"than its members: that of BALI holds out {METHODS[BALI_MIXTURE].n_held_out:,} rows of the training part and",
            "fits the temperature of its probabilities on them, as `BALIClassifier` does. Means over seeds, ± their",
            f"standard deviation. Threads: {', '.join(map(str, threads))}.",
        ),
        "",
        *table(header, rows),
        "",
        *_settings(lines, name),
    ]


def _settings(lines: Sequence[Line], name: str) -> list[str]:
    own = [line["settings"] for line in lines if line["method"] == BALI]
    if not own:
        return []
    listed = ", ".join(f"{key.replace('_', ' ')} {value:g}" for key, value in own[-1].items())
    return paragraph(
        f"BALI's settings: {listed}; effective size {EFFECTIVE_SIZE[name]:,}, the better one of 20,000 and all rows on",
        "validation rows of the training part.",
    )


def _step_section(lines: Sequence[Line]) -> list[str]:
    rows = [
        (
            str(line["batch"]),
            f"{line['bali_ms']:.1f}",
            f"{line['adam_ms']:.1f}",
            f"{line['ratio']:.2f}",
            f"{line['lower']:.2f} to {line['upper']:.2f}",
            str(line["rounds"]),
            str(line["threads"]),
        )
        for line in lines
    ]
    header = ("batch", "BALI, ms", "Adam, ms", "ratio", "middle half of the rounds", "rounds", "threads")
    return [
        *paragraph(
            "Random images; the two take turns, and the ratio is that of the medians. Adam is torch's fused one. Patches of",
            "the convolutions are not written out: their products are made of products of lines of the images",
            "(`src/bali/conjugate/rows.py`).",
        ),
        "",
        *table(header, rows),
    ]


def _trainings(lines: Sequence[Line], name: str) -> list[Line]:
    return [line for line in lines if line["kind"] == "training" and line["set"] == name]


def _longest(lines: Sequence[Line]) -> list[Line]:
    """Those with the most rows, and among them the most steps."""
    most = max(((line["n_train"], line["steps"]) for line in lines), default=None)
    return [line for line in lines if (line["n_train"], line["steps"]) == most]


def _mean(lines: Sequence[Line], key: str) -> float | None:
    return statistics.mean(line[key] for line in lines) if lines else None


def _with_spread(lines: Sequence[Line], key: str) -> str:
    values = [line[key] for line in lines]
    spread = f" ± {statistics.stdev(values):.4f}" if len(values) > 1 else ""
    return f"{statistics.mean(values):.4f}{spread}"
