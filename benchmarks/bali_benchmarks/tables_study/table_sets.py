"""The tables of the comparison and their splits: scikit-learn's, made ones, and the real ones of the benchmark."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import numpy as np
from sklearn import datasets
from sklearn.model_selection import KFold, StratifiedKFold

from bali_benchmarks.datasets.dataset import Split, random_rows
from bali_benchmarks.datasets.loading import load
from bali_benchmarks.datasets.storage import data_folder
from bali_benchmarks.tables_study.made_tables import MADE, N_TEST

Kind = Literal["bundled", "made", "published", "random", "timed"]
#: Of a set with very many rows, so many are learnt from and so many predicted.
MOST_ROWS = 20_000
#: What `FRIEDMAN` is called. It is run alone on the machine, for seconds.
FRIEDMAN = "1,000 × 10"


@dataclass(frozen=True)
class Table:
    name: str
    kind: Kind
    classification: bool
    n_folds: int
    split: Callable[[int], Split]


def _bundled(loader: Callable[..., Any], classification: bool, fold: int) -> Split:
    """One of five folds."""
    X, y = loader(return_X_y=True)
    folds = (StratifiedKFold if classification else KFold)(5, shuffle=True, random_state=0)
    train, test = list(folds.split(X, y))[fold]
    return Split(X[train], y[train], X[test], y[test])


def _made(name: str, fold: int) -> Split:
    return Split(*MADE[name].draw(fold))


def _registered(name: str, fold: int) -> Split:
    split = load(name).split(fold)
    parts = (split.X_train, split.y_train, split.X_test, split.y_test)
    return Split(*(part[:MOST_ROWS] for part in parts)) if name == "diabetes" else split


def _one_published_split(name: str, fold: int) -> Split:
    """The published split, then random ones of the same size."""
    folder = data_folder()
    if folder is None or not (folder / f"uci_regression/{name}.npz").is_file():
        raise ValueError(f"no file uci_regression/{name}.npz; set BALI_DATA to a folder that has it")
    data = np.load(folder / f"uci_regression/{name}.npz", allow_pickle=False)
    X, y = data["X"], data["y"].astype(float)
    train, test = (data["train_index"][0], data["test_index"][0]) if fold == 0 else random_rows(len(y), fold, 0.2)
    return Split(X[train], y[train], X[test], y[test])


def _friedman(fold: int) -> Split:
    """Ten columns, five of them without effect, unit noise."""
    train, test = (
        datasets.make_friedman1(n, 10, noise=1.0, random_state=2 * fold + k) for k, n in enumerate((1000, N_TEST))
    )
    return Split(*train, *test)


def _tables() -> list[Table]:
    loaders = {"diabetes": datasets.load_diabetes, "wine": datasets.load_wine}
    loaders |= {"breast_cancer": datasets.load_breast_cancer, "digits": datasets.load_digits}
    found = [Table(n, "bundled", n != "diabetes", 5, partial(_bundled, f, n != "diabetes")) for n, f in loaders.items()]
    found += [Table(name, "made", made.classification, 3, partial(_made, name)) for name, made in MADE.items()]
    for name in ("yacht", "energy", "concrete", "redwine", "kin8nm", "powerplant", "protein"):
        found.append(Table(name, "published", False, 3, partial(_registered, name)))
    for name in ("airfoil", "bikesharing"):
        found.append(Table(name, "random", False, 3, partial(_one_published_split, name)))
    for name, own in (("spam", "spam"), ("telescope", "telescope"), ("cdc_diabetes", "diabetes")):
        found.append(Table(name, "random", True, 3, partial(_registered, own)))
    return [*found, Table(FRIEDMAN, "timed", False, 3, _friedman)]


#: From what is fitted in seconds to what takes minutes: that is the order of a run.
_ORDER = """
yacht jumps wine energy concrete airfoil separable sparse nothing rings diabetes outliers breast_cancer redwine heavy_tails
rare_class spam correlated digits kin8nm powerplant five_classes telescope cdc_diabetes bikesharing protein uneven_noise
"""
_PLACES = {name: place for place, name in enumerate([*_ORDER.split(), FRIEDMAN])}
TABLES = {table.name: table for table in sorted(_tables(), key=lambda table: _PLACES[table.name])}
