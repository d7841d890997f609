"""The methods of the study: what can be scaled, around which values, and how a split is fitted."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from bali.estimators import BALIRegressor, defaults
from bali.predictive.mixtures import RegressionPredictive
from bali_benchmarks.baselines import BaselineRegressor
from bali_benchmarks.baselines.table import METHODS as BASELINES
from bali_benchmarks.datasets import Split
from bali_benchmarks.reproduce.courses import BaliCourse
from bali_benchmarks.reproduce.long_runs import NoWatch, train
from bali_benchmarks.reproduce.paper_settings import REGRESSION, PaperSetting
from bali_benchmarks.reproduce.pools import table_pool
from bali_benchmarks.reproduce.regression import QUICK_DEFAULTS, member_predictive

Value = float | Sequence[float]
Values = dict[str, Value]

#: Steps of BALI with the paper's settings, where the paper has ten times as many and more.
BEFORE_STEPS = 2000
#: Steps of the methods that BALI is compared with: half of what they have by default.
BASELINE_STEPS = 5000
QUICK_STEPS = 60
#: What a moving average's rate can be at most.
MOST = {"ema_rate": 1.0}
#: How hyperparameters are called on the page; others by their names.
LABELS = {
    "step_size": "step size α",
    "ema_rate": "averaging rate",
    "prior_variance": "prior variance",
    "effective_size": "effective size N_eff",
    "effective_share": "effective size N_eff",
    "noise_floor": "noise floor, hidden",
    "output_noise_floor": "noise floor, output",
    "max_iter": "steps",
    "batch_size": "rows of a step",
    "n_members": "members",
    "learning_rate": "learning rate",
    "prior_precision": "prior precision",
    "kl_weight": "weight of the KL term",
    "damping": "damping",
    "trust": "trust region",
}


class StudyTask(NamedTuple):
    """One split to fit."""

    name: str  # of the data set
    number: int  # of the split, and the seed
    split: Split
    quick: bool
    #: What a method that searches found for this split, once it has.
    chosen: Mapping[str, float] | None = None


class StudyFit(NamedTuple):
    predictive: RegressionPredictive
    steps: int
    chosen: Mapping[str, float] | None = None


@dataclass(frozen=True)
class Studied:
    """A method with the hyperparameters that are scaled."""

    title: str
    hyperparameters: tuple[str, ...]
    values: Callable[[StudyTask], Values]
    #: With some hyperparameters changed, none for the method as it is.
    fit: Callable[[StudyTask, Values], StudyFit]
    #: Whether the method's settings are chosen on held-out rows first, so that others can only be run after that.
    searches: bool = False


def scaled(name: str, value: Value, factor: float) -> Value:
    """A hyperparameter so many times as large; a list of candidates, all of them."""
    if isinstance(value, Sequence):
        return [v * factor for v in value]
    if isinstance(value, int):
        return max(1, round(value * factor))
    return min(value * factor, MOST.get(name, float("inf")))


# --- BALI with its defaults -------------------------------------------------------------------------------------


def bali_values(task: StudyTask) -> Values:
    """The estimator's own, or what the rules give for the table."""
    n_rows = len(task.split.X_train)
    model = BALIRegressor(**_quick_defaults(task))
    course = defaults.course(n_rows)
    rules: Values = {
        "max_iter": course.n_steps,
        "batch_size": course.batch_size,
        "n_members": defaults.members(n_rows),
    }
    own = {name: getattr(model, name) for name in METHODS["bali"].hyperparameters}
    return {name: rules[name] if value is None else value for name, value in own.items()}


def fit_defaults(task: StudyTask, changed: Values) -> StudyFit:
    model = BALIRegressor(random_state=task.number, **(_quick_defaults(task) | changed))
    model.fit(task.split.X_train, task.split.y_train)
    return StudyFit(model.pred_dist(task.split.X_test), model.n_iter_)


def _quick_defaults(task: StudyTask) -> dict[str, Any]:
    return QUICK_DEFAULTS if task.quick else {}


# --- BALI with the paper's settings -----------------------------------------------------------------------------


def before_setting(task: StudyTask) -> PaperSetting:
    setting = REGRESSION[task.name]
    return setting.quick() if task.quick else replace(setting, n_steps=BEFORE_STEPS)


def before_values(task: StudyTask) -> Values:
    setting = before_setting(task)
    return {name: getattr(setting, name) for name in METHODS["before"].hyperparameters}


def fit_before(task: StudyTask, changed: Values) -> StudyFit:
    fields: dict[str, Any] = dict(changed)
    setting = replace(before_setting(task), **fields)
    pool = table_pool([task.split], 0)
    course = BaliCourse(pool, setting, seed=task.number)
    train(course, setting.n_steps, NoWatch())
    return StudyFit(member_predictive(course.inference, pool, 0, setting.n_samples), setting.n_steps)


# --- other methods ----------------------------------------------------------------------------------------------


def _baseline(name: str, title: str, hyperparameters: tuple[str, ...]) -> Studied:
    def values(task: StudyTask) -> Values:
        """What validation chose, and the method's own values of what it does not choose."""
        assert task.chosen is not None
        return {h: task.chosen.get(h, getattr(BASELINES[name], h)) for h in hyperparameters}

    def fitted(task: StudyTask, settings: Mapping[str, Any] | None) -> BaselineRegressor:
        steps = QUICK_STEPS if task.quick else BASELINE_STEPS
        model = BaselineRegressor(name, settings=settings, max_iter=steps, random_state=task.number)
        return model.fit(task.split.X_train, task.split.y_train)

    def fit(task: StudyTask, changed: Values) -> StudyFit:
        """Without a change, the choice is fitted once more by itself: with the random numbers that changed ones get."""
        chosen = task.chosen or fitted(task, None).settings_
        model = fitted(task, {**chosen, **changed})
        return StudyFit(model.pred_dist(task.split.X_test), model.n_iter_, chosen)

    return Studied(title, hyperparameters, values, fit, searches=True)


METHODS: dict[str, Studied] = {
    "bali": Studied(
        "BALI, defaults",
        ("step_size", "prior_variance", "batch_size", "max_iter", "n_members"),
        bali_values,
        fit_defaults,
    ),
    "before": Studied(
        "BALI, the paper's settings",
        ("step_size", "ema_rate", "prior_variance", "effective_share", "noise_floor", "output_noise_floor"),
        before_values,
        fit_before,
    ),
    "noisy_kfac": _baseline(
        "noisy_kfac",
        "Noisy K-FAC",
        ("learning_rate", "prior_variance", "kl_weight", "damping", "trust", "ema_rate"),
    ),
    "map": _baseline("map", "MAP by Adam", ("learning_rate", "prior_precision")),
}
