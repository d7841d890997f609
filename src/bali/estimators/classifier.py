"""Classification."""

from __future__ import annotations

from typing import Any

from torch import Tensor
from torch.nn import functional

from bali.estimators.base import BALIEstimator
from bali.estimators.distributional import Array, ClassificationEstimator
from bali.estimators.model_schema import BALI_CLASSIFIER


class BALIClassifier(ClassificationEstimator, BALIEstimator):
    """Classification with class probabilities averaged over the posterior. See `BALIRegressor` for the parameters.

    After training, the width of the posterior and a temperature, the power to which probabilities are raised, are fitted on
    the held-out rows.
    """

    file_schema = BALI_CLASSIFIER

    def _likelihood_names(self) -> tuple[str, ...]:
        if self.likelihood != "auto":
            raise ValueError(f"a classifier has the likelihood 'auto', which is that of classes; got {self.likelihood!r}")
        return ("categorical",)

    def _n_network_outputs(self, likelihood: Any, t: Tensor) -> int:
        return len(self.classes_)

    def _near_targets(self, t: Tensor) -> Array:
        """Frequencies of all classes but the first, which is what they leave."""
        return functional.one_hot(t, len(self.classes_))[:, 1:].double().cpu().numpy()
