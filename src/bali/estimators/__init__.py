"""BALI for tables of numbers: scikit-learn estimators whose predictions are distributions.

Knows arrays, the rules that turn the size of a table into a recipe, and model files. Does not know CSV files, names of
categories or missing cells.
"""

from bali.estimators.base import BALIEstimator
from bali.estimators.classifier import BALIClassifier
from bali.estimators.regressor import BALIRegressor

__all__ = ["BALIClassifier", "BALIEstimator", "BALIRegressor"]
