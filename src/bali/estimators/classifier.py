"""Classification."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import ArrayLike
from sklearn.base import ClassifierMixin
from sklearn.utils.multiclass import check_classification_targets
from torch import Tensor

from bali.calibration import fit_temperature
from bali.estimators.base import Array, BALIEstimator
from bali.likelihoods import Categorical
from bali.predictive import ClassPredictive, Predictive


class BALIClassifier(ClassifierMixin, BALIEstimator):  # type: ignore[misc]
    """Classification with class probabilities averaged over the posterior. See `BALIRegressor` for the parameters.

    After training, one number, `temperature_`, is fitted on the held-out rows: the power to which probabilities are raised.
    """

    _likelihood = Categorical
    _is_classifier = True

    def _values(self, y: Array, *, learn: bool, classes: ArrayLike | None = None) -> Array:
        check_classification_targets(y)
        if learn:
            self.classes_ = np.unique(y if classes is None else np.asarray(classes))
            if len(self.classes_) < 2:
                raise ValueError(
                    f"y has only one class, {self.classes_[0]!r}; a classifier needs at least two. The number of classes "
                    "has to be greater than one."
                )
        unknown = np.setdiff1d(y, self.classes_)
        if len(unknown):
            raise ValueError(f"y has classes that the model was not started with: {unknown[:5].tolist()}")
        return np.searchsorted(self.classes_, y).astype(np.float64)[:, None]

    def _learn_scales(self, values: Array, weight: Array) -> None:
        """Classes have none."""

    def _n_outputs(self, values: Array) -> int:
        return len(self.classes_)

    def _target_tensor(self, values: Array) -> Tensor:
        return torch.as_tensor(values[:, 0].astype(np.int64), device=self._device)

    def _calibrate(self, X: Array, values: Array, weight: Array, masks: Array | None) -> None:
        self.temperature_ = 1.0
        if masks is not None:
            held_out = torch.as_tensor(masks, device=self._device)
            data = self._inputs(X), self._target_tensor(values), self._tensor(weight)
            self.temperature_ = fit_temperature(self.inference_, *data, held_out)

    def _tempered(self, predictive: Predictive) -> ClassPredictive:
        assert isinstance(predictive, ClassPredictive)
        return predictive.tempered(self.temperature_)

    def pred_dist(self, X: ArrayLike) -> ClassPredictive:
        """The predictive distribution of the class at the rows of X."""
        return self._tempered(super().pred_dist(X))

    def predict_proba(self, X: ArrayLike) -> Array:
        """Class probabilities, (n, n_classes), in the order of `classes_`."""
        return np.concatenate([self._tempered(chunk).probabilities.double().cpu().numpy() for chunk in self._chunks(X)])

    def predict_log_proba(self, X: ArrayLike) -> Array:
        return np.log(np.maximum(self.predict_proba(X), np.finfo(np.float64).tiny))

    def predict(self, X: ArrayLike) -> Array:
        """The most probable class of each row."""
        best = self.predict_proba(X).argmax(1)
        return self.classes_[best]
