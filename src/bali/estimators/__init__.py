"""BALI for tables: scikit-learn estimators whose predictions are distributions."""

from bali.estimators.base import BALIEstimator
from bali.estimators.classifier import BALIClassifier
from bali.estimators.regressor import BALIRegressor

__all__ = ["BALIClassifier", "BALIEstimator", "BALIRegressor"]
