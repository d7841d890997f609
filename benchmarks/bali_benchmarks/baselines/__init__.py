"""Methods to compare BALI with, one file each, all fitted by one protocol and with the contract of the BALI estimators."""

from bali_benchmarks.baselines.estimators import BaselineClassifier, BaselineEstimator, BaselineRegressor, load
from bali_benchmarks.baselines.method import Method, State, Task
from bali_benchmarks.baselines.selection import Budget, Fitted, fit_members
from bali_benchmarks.baselines.table import METHODS

__all__ = [
    "METHODS",
    "BaselineClassifier",
    "BaselineEstimator",
    "BaselineRegressor",
    "Budget",
    "Fitted",
    "Method",
    "State",
    "Task",
    "fit_members",
    "load",
]
