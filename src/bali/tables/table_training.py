"""From a table in a file to a trained and scored model, and rows that come after the training."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from importlib.metadata import version
from typing import Any, Literal

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from sklearn.model_selection import train_test_split

from bali.estimators import BALIClassifier, BALIEstimator, BALIRegressor
from bali.estimators.second_models import look_like_counts
from bali.tables.cells import Kind, Surprises, TableEncoder, plan_columns
from bali.tables.column_effects import column_effects
from bali.tables.errors import TableError, plural, quoted, shown
from bali.tables.opening import Table
from bali.tables.table_model import TableModel, noted_warnings
from bali.tables.table_scores import score_rows
from bali.tables.target_column import Target, Task, learn_target
from bali.tables.what_if import learn_ranges
from bali.training.table_fit import Progress

MIN_ROWS = 2
#: Of fewer rows, all are learned from: one or two kept aside would say nothing.
MIN_ROWS_TO_SCORE = 20
#: What looking at the columns one by one may take, in seconds and beside the training.
LEAST_SECONDS, SHARE_OF_TRAINING = 3.0, 0.1


@dataclass(frozen=True)
class FitOptions:
    target: str  # of durations, the column of times
    task: Task | Literal["auto"] = "auto"
    drop: tuple[str, ...] = ()
    category: tuple[str, ...] = ()
    id: str | None = None
    event: str | None = None  # of durations: 1 where it was over, 0 where not
    holdout: float = 0.1
    seed: int = 0
    estimator: dict[str, Any] = field(default_factory=dict)  # parameters that differ from the defaults
    time_limit: float | None = None  # seconds of training

    @property
    def targets(self) -> list[str]:
        return [self.target] if self.event is None else [self.target, self.event]


@dataclass(frozen=True)
class TrainingTable:
    """A table that was read and found usable."""

    source: str
    frame: pd.DataFrame  # the columns to learn from
    kinds: dict[str, Kind]
    target: Target
    y: NDArray[Any]
    ids: pd.Series
    reason: str  # for this task
    notes: list[str]


def read_training_table(table: Table, options: FitOptions) -> TrainingTable:
    _check_names(table, options)
    aside = {*options.targets, options.id, *options.drop}
    inputs = [name for name in table.columns if name not in aside]
    wanted = [*inputs, *options.targets, *([options.id] if options.id else [])]
    as_text = [*options.category, *([options.id] if options.id else [])]
    frame = table.read(wanted, as_text)
    known = frame[options.targets].notna().all(axis=1)
    notes = []
    if not known.all() and len(frame):
        notes.append(f"{plural(int((~known).sum()), 'row')} without a value of {quoted(options.targets)} left out")
    frame = frame[known]
    if len(frame) < MIN_ROWS:
        having = f" with a value of {quoted(options.targets)}" if notes else ""
        raise TableError(f"{table.source.name} has {plural(len(frame), 'row')}{having}; at least {MIN_ROWS} are needed")
    events = None if options.event is None else frame[options.event]
    target, reason = learn_target(frame[options.target], options.task, events)
    plan = plan_columns(frame[inputs], options.category)
    return TrainingTable(
        source=table.source.stem,
        frame=frame[inputs],
        kinds=plan.kinds,
        target=target,
        y=target.values(frame[options.target], events),
        ids=frame[options.id] if options.id else pd.Series(frame.index, index=frame.index),
        reason=reason,
        notes=notes + plan.notes,
    )


def _check_names(table: Table, options: FitOptions) -> None:
    named: dict[str, Sequence[str]] = {"--drop": options.drop, "--category": options.category}
    named |= (
        {"--target": [options.target]} if options.event is None else {"--time": [options.target], "--event": [options.event]}
    )
    for option, names in (named | {"--id": [options.id] if options.id else []}).items():
        absent = [name for name in names if name not in table.columns]
        if absent:
            raise TableError(
                f"{table.source.name} has no column {quoted(absent)} ({option}); its columns are {quoted(table.columns, 12)}"
            )
    for name in options.targets:
        if [*options.targets, *options.drop, *options.category, options.id].count(name) > 1:
            raise TableError(f"column {shown(name)} is the target and cannot be something else too")


def fit_table(data: TrainingTable, options: FitOptions, on_step: Callable[[Progress], None]) -> TableModel:
    """Train on one part of the rows and score the other. The model's record says how it went."""
    started = time.perf_counter()
    train, held_out = _split(data, options)
    encoder = TableEncoder.learn(data.frame.iloc[train], data.kinds)
    features = encoder.transform(data.frame.iloc[train])
    estimator, notes = _fit(data, features, data.y[train], options, on_step)
    record: dict[str, Any] = {}
    model = TableModel(estimator, encoder, data.target, record)
    trained = time.perf_counter() - started
    kept = data.frame.iloc[held_out], data.y[held_out], data.ids.iloc[held_out]
    scored = score_rows(model, *kept, options.seed)
    rows = (kept[0], kept[1]) if len(held_out) else (data.frame.iloc[train], data.y[train])
    effects = column_effects(model, *rows, seed=options.seed, seconds=max(LEAST_SECONDS, SHARE_OF_TRAINING * trained))
    record |= {
        "target": data.target.name,
        "task": data.target.task,
        "source": data.source,
        "features": list(data.kinds),
        "notes": data.notes + notes + scored.notes + _unscored(held_out, options),
        "n_rows": len(data.y),
        "n_train": len(train),
        "n_holdout": len(held_out),
        "seconds": time.perf_counter() - started,
        "bali_version": version("bali-torch"),
        "metrics": scored.metrics,
        "holdout": scored.rows,
        "checks": scored.checks,
        "columns": effects,
        "inputs": learn_ranges(data.frame.iloc[train], encoder),
    }
    return model


def _split(data: TrainingTable, options: FitOptions) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Row positions to learn from and to score; classes in proportion where there are enough of each."""
    n = len(data.y)
    if options.holdout == 0.0 or n < MIN_ROWS_TO_SCORE:
        return np.arange(n), np.arange(0)
    n_holdout = max(round(options.holdout * n), 2)
    labels = None
    if data.target.task == "classification":
        smallest, n_classes = np.bincount(data.y).min(), len(data.target.classes)
        labels = data.y if smallest >= 2 and n_classes <= n_holdout <= n - n_classes else None
    train, held_out = train_test_split(np.arange(n), test_size=n_holdout, random_state=options.seed, stratify=labels)
    if labels is None and data.target.task == "classification":  # a class seen nowhere in training cannot be predicted
        stranded = held_out[~np.isin(data.y[held_out], data.y[train])]
        train, held_out = np.concatenate([train, stranded]), np.setdiff1d(held_out, stranded)
    return np.sort(train), np.sort(held_out)


def _unscored(held_out: NDArray[np.int64], options: FitOptions) -> list[str]:
    if len(held_out) or options.holdout == 0.0:
        return []
    return ["no scores: there are too few rows, or rows of each class, to keep some aside"]


def _fit(
    data: TrainingTable, features: pd.DataFrame, y: NDArray[Any], options: FitOptions, on_step: Callable[[Progress], None]
) -> tuple[BALIEstimator, list[str]]:
    """The trained estimator, and what it warned of."""
    parameters = {"random_state": options.seed} | options.estimator
    estimator: BALIEstimator
    if data.target.task == "classification":
        estimator, y = BALIClassifier(**parameters), data.target.labels[y]
    else:
        task = data.target.task  # what looks like counts and is a regression was said to be no counts
        likelihood = task if task != "regression" else "gaussian" if look_like_counts(y) else "auto"
        estimator = BALIRegressor(likelihood=likelihood, **parameters)
    with noted_warnings() as notes:
        estimator.fit_with_progress(features, y, on_step, time_limit=options.time_limit)
    return estimator, [note.replace("raise max_iter", "raise --max-iter") for note in notes]


# --- rows that come later: taken in by the output layers, exactly, in whatever parts they come ------------------------


#: Standard errors by which new rows lie further from their predictions than rows that were kept aside: of chance, about one
#: time in seven hundred.
_TOO_FAR = 3.0


def check_takes_rows(model: TableModel) -> BALIRegressor:
    """Its estimator, if output layers can take in rows in closed form."""
    estimator = model.estimator
    if not isinstance(estimator, BALIRegressor) or not estimator.posterior_.is_regression:
        raise TableError(
            f"{shown(model.target.name)} is a target of {model.target.task}: only a regression with Gaussian noise takes in "
            "rows without training; fit the model again with all rows"
        )
    return estimator


def take_in(
    model: TableModel, pieces: Iterable[tuple[pd.DataFrame, NDArray[np.float64]]], forget: float, surprises: Surprises
) -> tuple[int, list[str]]:
    """The number of rows, and what is to be said of them. The model's estimator is changed in place.

    `pieces` are rows and their targets; `forget` is the share of all earlier rows that fades.
    """
    estimator, distances = check_takes_rows(model), list[NDArray[np.float64]]()
    for frame, y in pieces:
        before = model.predictive(frame, surprises)
        spread = before.variance[:, 0].sqrt().double().cpu().numpy()
        distances.append(np.abs(y - before.mean[:, 0].double().cpu().numpy()) / spread)
        features = model.encoder.transform(frame)
        estimator.partial_fit(features, y, output_only=True, forget=0.0 if len(distances) > 1 else forget)
    n_rows = sum(map(len, distances))
    return n_rows, _drift(model, np.concatenate(distances)) if n_rows else []


def _drift(model: TableModel, found: NDArray[np.float64]) -> list[str]:
    """Said where new rows are further from their predictions, in standard deviations, than those kept aside in training."""
    kept = model.record["holdout"]
    if not kept:
        return []
    known = np.abs(np.array(kept["y"]) - np.array(kept["mean"])) / np.array(kept["std"])
    if min(len(known), len(found)) < 2:
        return []
    error = math.sqrt(known.var(ddof=1) / len(known) + found.var(ddof=1) / len(found))
    if not found.mean() - known.mean() > _TOO_FAR * error:
        return []
    return [
        f"the {plural(len(found), 'row')} lie {found.mean():.2f} standard deviations from their predictions on average, "
        f"rows kept aside in training {known.mean():.2f}: what holds now may be something else; let earlier rows fade "
        "(--forget), or fit again"
    ]
