"""The methods of the comparison: one row each."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec

import bali
from bali_benchmarks.tables_study import boosted_trees as trees
from bali_benchmarks.tables_study import classical_models as classical
from bali_benchmarks.tables_study import deep_ensembles, other_networks
from bali_benchmarks.tables_study.densities import Array, Fit, Fitted


@dataclass(frozen=True)
class TableMethod:
    """`regression` or `classification` is `None` where a method has no such thing."""

    name: str
    what: str  # its distribution and its settings, a sentence for the page
    regression: Fit | None
    classification: Fit | None
    package: str | None = None  # what has to be installed
    most_rows: int | None = None  # to learn from: more would take too long

    def fit(self, classification: bool) -> Fit | None:
        return self.classification if classification else self.regression

    @property
    def is_installed(self) -> bool:
        """An extra: `pip install 'bali-benchmarks[peers]'`."""
        return self.package is None or find_spec(self.package) is not None


def _bali(kind: Callable[..., bali.BALIRegressor | bali.BALIClassifier]) -> Fit:
    def fit(X: Array, y: Array, seed: int) -> Fitted:
        return kind(random_state=seed).fit(X, y).pred_dist

    return fit


_TREES = "rows held out say how many trees are enough"
_METHODS = (
    TableMethod(
        "BALI",
        "`BALIRegressor()`, `BALIClassifier()`; their own density",
        _bali(bali.BALIRegressor),
        _bali(bali.BALIClassifier),
    ),
    TableMethod(
        "linear",
        "ridge regression, a Gaussian with the noise of its leave-one-out errors; logistic regression",
        classical.ridge,
        classical.logistic,
    ),
    TableMethod(
        "Gaussian process",
        "scikit-learn's: a length for each column, scale and noise by the evidence; of classes one length, Laplace's "
        "approximation; tables of at most 2,000 rows",
        classical.gaussian_process_regression,
        classical.gaussian_process_classification,
        most_rows=2000,
    ),
    TableMethod(
        "CatBoost",
        f"`RMSEWithUncertainty`, a Gaussian with the mean and variance it predicts; {_TREES}",
        trees.catboost_regression,
        trees.catboost_classification,
        package="catboost",
    ),
    TableMethod(
        "XGBoost",
        f"squared errors, a Gaussian with the noise of held-out rows; {_TREES}, at most 1,000",
        trees.xgboost_regression,
        trees.xgboost_classification,
        package="xgboost",
    ),
    TableMethod(
        "XGBoost quantiles",
        "twenty quantiles, an equal mixture of Gaussians about them, their one width by held-out rows; regression only",
        trees.xgboost_quantiles,
        None,
        package="xgboost",
    ),
    TableMethod(
        "NGBoost",
        f"a Gaussian with the mean and variance it predicts; its 500 trees, or fewer: {_TREES}",
        trees.ngboost_regression,
        trees.ngboost_classification,
        package="ngboost",
    ),
    TableMethod(
        "deep ensemble",
        "five perceptrons of two layers of 100, Adam, stopped by held-out rows; a mixture of Gaussians, each with a mean "
        "and a variance for every row",
        deep_ensembles.regression,
        deep_ensembles.classification,
    ),
    TableMethod(
        "TabM",
        "pytabkit's `TabM_D`, which standardises itself; a Gaussian with the noise of the held-out rows that it stops by",
        other_networks.tabm_regression,
        other_networks.tabm_classification,
        package="pytabkit",
        most_rows=10_000,
    ),
    TableMethod(
        "bde",
        "a Gaussian with the mean and standard deviation it predicts",
        other_networks.bde_regression,
        other_networks.bde_classification,
        package="bde",
        most_rows=3000,
    ),
)
METHODS = {method.name: method for method in _METHODS}
