"""The table of runs: every method on every split as it is, and with each of its hyperparameters scaled."""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch
from sklearn.exceptions import ConvergenceWarning

from bali.conjugate.linalg import NumericalRepairWarning
from bali.inference.health import HealthWarning
from bali_benchmarks import datasets
from bali_benchmarks.datasets.registry import ENTRIES
from bali_benchmarks.defaults_study.sensitivity_fits import METHODS, StudyFit, StudyTask, Values, scaled
from bali_benchmarks.reproduce.paper_settings import REGRESSION
from bali_benchmarks.reproduce.pools import split_of
from bali_benchmarks.reproduce.regression import scores
from bali_benchmarks.threads import threads_for

Line = dict[str, Any]
Key = tuple[str, str, int, str | None, float, bool]

SETS = tuple(REGRESSION)
FACTORS = (1 / 3, 3.0)
#: About the seconds of one core of a run on up to a thousand rows, and of one with full batches: only the bar depends on it.
SECONDS = {"bali": (30, 90), "before": (5, 20), "noisy_kfac": (15, 20), "map": (8, 10)}


@dataclass(frozen=True)
class Case:
    """One run. Without a hyperparameter, it is the method as it is."""

    method: str
    name: str  # of the data set
    split: int
    hyperparameter: str | None = None
    factor: float = 1.0
    quick: bool = False

    @property
    def key(self) -> Key:
        return (self.method, self.name, self.split, self.hyperparameter, self.factor, self.quick)

    @property
    def default(self) -> Case:
        """The run that this one is compared with."""
        return replace(self, hyperparameter=None, factor=1.0)

    @property
    def cost(self) -> float:
        """Expected work, in about seconds of one core."""
        small, large = SECONDS[self.method]
        seconds = 1.0 if self.quick else float(small if ENTRIES[self.name].n_rows <= 1000 else large)
        if self.hyperparameter is None and METHODS[self.method].searches:
            return 2.5 * seconds
        return self.factor * seconds if self.hyperparameter == "max_iter" else seconds


def key_of(line: Line) -> Key:
    """Of the case that wrote the line."""
    return (line["method"], line["set"], line["split"], line["hyperparameter"], line["factor"], line["quick"])


def cases(
    sets: Sequence[str] = SETS, methods: Sequence[str] = tuple(METHODS), n_splits: int = 2, *, quick: bool = False
) -> list[Case]:
    """What there is to do, or an error that says which sets and methods there are."""
    for given, known, what in ((sets, SETS, "set"), (methods, tuple(METHODS), "method")):
        unknown = [name for name in given if name not in known]
        if unknown:
            raise ValueError(f"there is no {what} {unknown[0]!r} in this study; there are {', '.join(known)}")
    found = []
    for method in methods:
        for name in sets:
            for split in range(min(n_splits, REGRESSION[name].n_splits)):
                own = Case(method, name, split, quick=quick)
                changes = [(h, factor) for h in METHODS[method].hyperparameters for factor in FACTORS]
                found += [own, *(replace(own, hyperparameter=h, factor=factor) for h, factor in changes)]
    return found


def run_case(case: Case, chosen: Mapping[str, float] | None = None) -> Line:
    """The line of one run, on one thread: several of them share the machine. A run that diverges has no scores."""
    start = time.perf_counter()
    task = task_of(case, chosen)
    changed: Values = {}
    if case.hyperparameter is not None:
        value = METHODS[case.method].values(task)[case.hyperparameter]
        changed[case.hyperparameter] = scaled(case.hyperparameter, value, case.factor)
    with threads_for((1,)):
        try:
            fit = _fit(case, task, changed)
        except ArithmeticError:  # of Cholesky factors or of all candidates; scaled settings may well be bad ones
            result: Line = {"steps": None, "chosen": None, "diverged": True}
        else:
            found = scores(fit.predictive, torch.as_tensor(task.split.y_test))
            diverged = not all(math.isfinite(score) for score in found.values())
            result = {} if diverged else found
            result |= {"steps": fit.steps, "chosen": fit.chosen, "diverged": diverged}
    rows, columns = task.split.X_train.shape
    given = {"set" if name == "name" else name: value for name, value in asdict(case).items()}
    data = {"rows": rows, "columns": columns, "seed": task.number, "changed": changed}
    return given | data | result | {"seconds": round(time.perf_counter() - start, 1)}


def task_of(case: Case, chosen: Mapping[str, float] | None = None) -> StudyTask:
    """The case's split; only its first rows where a look is wanted."""
    setting = REGRESSION[case.name]
    split = split_of(datasets.load(case.name), setting.quick() if case.quick else setting, case.split, published=True)
    return StudyTask(case.name, case.split, split, case.quick, chosen)


def _fit(case: Case, task: StudyTask, changed: Values) -> StudyFit:
    """Warnings about settings that were made worse on purpose are of no use, but a fit that was interrupted is none."""
    with warnings.catch_warnings():
        for kind in (ConvergenceWarning, HealthWarning, NumericalRepairWarning):
            warnings.simplefilter("ignore", kind)
        warnings.filterwarnings("error", "training was interrupted", ConvergenceWarning)
        try:
            return METHODS[case.method].fit(task, changed)
        except ConvergenceWarning as warning:
            raise KeyboardInterrupt from warning
