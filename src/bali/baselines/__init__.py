"""Methods to compare BALI with, one file each, all fitted by one protocol and with the contract of the BALI estimators."""

from bali.baselines.estimators import BaselineClassifier, BaselineEstimator, BaselineRegressor
from bali.baselines.method import Method, State, Task
from bali.baselines.selection import Budget, Fitted, fit_members
from bali.baselines.table import METHODS

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
]
