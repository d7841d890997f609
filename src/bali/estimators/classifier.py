"""Classification."""

from __future__ import annotations

from bali.estimators.base import BALIEstimator
from bali.estimators.distributional import Array, ClassificationEstimator
from bali.estimators.model_schema import BALI_CLASSIFIER
from bali.training.calibration import fit_temperature


class BALIClassifier(ClassificationEstimator, BALIEstimator):
    """Classification with class probabilities averaged over the posterior. See `BALIRegressor` for the parameters.

    After training, one number, `temperature_`, is fitted on the held-out rows: the power to which probabilities are raised.
    """

    file_schema = BALI_CLASSIFIER

    def _calibrate(self, X: Array, values: Array, weight: Array, masks: Array | None) -> None:
        self.temperature_ = 1.0
        if masks is not None:
            self.temperature_ = fit_temperature(self._held_out_parts(X, values, weight, masks))
