"""BALI for tables: scikit-learn estimators whose predictions are distributions.

Knows arrays and frames, the rules that turn the size of a table into a recipe, and model files. Does not know CSV files or
dates.
"""

from bali.estimators.base import BALIEstimator
from bali.estimators.classifier import BALIClassifier
from bali.estimators.regressor import BALIRegressor

__all__ = ["BALIClassifier", "BALIEstimator", "BALIRegressor"]
