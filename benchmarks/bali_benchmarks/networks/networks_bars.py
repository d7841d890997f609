"""What `bali.fit` is to reach on these networks, and whether it does."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from bali_benchmarks.networks.network_tasks import TASKS
from bali_benchmarks.networks.networks_summary import Average, difference, of
from bali_benchmarks.performance.measurement import Line

BALI, ADAM, ENSEMBLE = "bali", "adam", "ensemble"
TEN = tuple(name for name, task in TASKS.items() if not task.is_extra)
IMAGES = tuple(name for name in TEN if TASKS[name].is_image)
CLASSES = tuple(name for name in TEN if not TASKS[name].is_regression)
#: Task, score, bound, and whether the score should be at least that.
_ABSOLUTE = (
    ("lenet-mnist", "accuracy", 0.993, True),
    ("lenet-mnist", "nll", 0.022, False),
    ("lenet-fashion", "accuracy", 0.915, True),
    ("lenet-fashion", "nll", 0.240, False),
    ("mlp-all", "nll", 0.045, False),
    ("mlp-all", "ece", 0.003, False),
    ("mlp-all", "auroc_mutual_information", 0.99, True),
)
SHOWN = {
    "nll": "NLL",
    "accuracy": "accuracy",
    "rmse": "RMSE",
    "ece": "ECE",
    "auroc_entropy": "AUROC, entropy",
    "auroc_mutual_information": "AUROC, mutual inf.",
}
Cells = tuple[str, str, str]


def is_no_worse(change: Average) -> bool:
    """Of a score of which less is better."""
    return change.mean <= 0.0


def is_better(change: Average) -> bool:
    """By more than a standard error; a single seed cannot tell."""
    return change.error is not None and change.mean < -change.error


def bars(lines: Sequence[Line]) -> list[Cells]:
    """What, how it is, and met or missed; a bar over several tasks is met only when enough of them are measured."""
    nll = _changes(lines, TEN, "nll")
    with_errors = {name: change for name, change in nll.items() if change is not None and change.error is not None}
    ece = _changes(lines, CLASSES, "ece")
    found = [
        _counted("NLL no worse than Adam's, all ten", nll, is_no_worse, 10, len(TEN)),
        _counted("NLL better than Adam's by more than a standard error, seven of ten", with_errors, is_better, 7, len(TEN)),
        _counted("ECE no worse than Adam's, eight of the nine with classes", ece, is_no_worse, 8, len(CLASSES)),
    ]
    for key in ("auroc_entropy", "auroc_mutual_information"):
        changes = {name: difference(lines, name, BALI, ADAM, key, "auroc_entropy") for name in IMAGES}
        what = f"{SHOWN[key]} better than Adam's by entropy, every image network"
        found.append(_counted(what, changes, lambda change: change.mean > 0.0, len(IMAGES), len(IMAGES)))
    mixed = {name: difference(lines, name, BALI, ENSEMBLE, "nll") for name in TEN}
    what = "NLL of one network better than that of five of Adam's, five of ten"
    found.append(_counted(what, mixed, lambda change: change.mean < 0.0, 5, len(TEN)))
    return found + [_absolute(lines, *goal) for goal in _ABSOLUTE]


def _changes(lines: Sequence[Line], tasks: Sequence[str], key: str) -> dict[str, Average | None]:
    return {name: difference(lines, name, BALI, ADAM, key) for name in tasks}


def _counted(
    what: str, changes: Mapping[str, Average | None], is_good: Callable[[Average], bool], least: int, n: int
) -> Cells:
    measured = {name: change for name, change in changes.items() if change is not None}
    if not measured:
        return what, "–", "not measured"
    not_so = [name for name, change in measured.items() if not is_good(change)]
    good = len(measured) - len(not_so)
    how = f"{good} of {len(measured)} measured" + (f"; not {', '.join(not_so)}" if not_so else "")
    if good >= least:
        return what, how, "met"
    return what, how, "missed" if n - len(not_so) < least else "open"


def _absolute(lines: Sequence[Line], task: str, key: str, bound: float, at_least: bool) -> Cells:
    what = f"{TASKS[task].title}: {SHOWN[key]} {'≥' if at_least else '≤'} {bound:g}"
    found = of(lines, task, BALI, key)
    if found is None:
        return what, "–", "not measured"
    met = found.mean >= bound if at_least else found.mean <= bound
    return what, found.text(), "met" if met else "missed"
