"""What all estimators of the package share: checked and standardised input, and predictions that are distributions.

`RegressionEstimator` and `ClassificationEstimator` turn a distribution at unit scale, however a method came by it, into
what scikit-learn's users expect.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
from sklearn.preprocessing import StandardScaler
from sklearn.utils import check_array, check_random_state
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import validate_data
from torch import Tensor

from bali.estimators.input_scaling import InputScaling
from bali.estimators.model_schema import FileSchema
from bali.predictive.mixtures import ClassPredictive, Predictive, RegressionPredictive

Array = NDArray[Any]
#: Variances of larger targets, or of targets all smaller than one over it, are not numbers.
LARGEST_TARGET = 1e140


class DistributionalEstimator(BaseEstimator, ABC):  # type: ignore[misc]
    """An estimator whose predictions are distributions. Fitting sets the attributes declared here."""

    _is_classifier: ClassVar[bool]
    #: What its file holds.
    file_schema: ClassVar[FileSchema]
    device: str
    #: Columns with heavy tails are bent.
    _bends_inputs: ClassVar[bool] = False
    #: NaN in X is a value that is not known.
    _allows_missing: ClassVar[bool] = False
    input_scaling_: Array  # the five rows of an `InputScaling`

    # --- input --------------------------------------------------------------------------------------------------

    def _validated(self, X: ArrayLike, y: ArrayLike, *, min_rows: int, reset: bool = True) -> tuple[Array, Array]:
        regression = not self._is_classifier
        checked: tuple[Array, Array] = validate_data(
            self,
            X,
            y,
            dtype=np.float64,
            y_numeric=regression,
            multi_output=regression,
            ensure_min_samples=min_rows,
            ensure_all_finite="allow-nan" if self._allows_missing else True,
            reset=reset,
        )
        return checked

    @property
    def _device(self) -> torch.device:
        if self.device == "auto":
            return torch.device("cuda" if torch.cuda.is_available() else "cpu")
        return torch.device(self.device)

    @property
    @abstractmethod
    def _dtype(self) -> torch.dtype:
        """Of rows and weights."""

    def _tensor(self, array: Array) -> Tensor:
        return torch.as_tensor(array, dtype=self._dtype, device=self._device)

    def _learn_input_scales(self, X: Array, weight: Array | None = None) -> None:
        self.input_scaling_ = np.stack(InputScaling.learn(X, weight, bends=self._bends_inputs, names=self._input_names()))

    def _input_names(self) -> Sequence[object] | None:
        """Of the columns of numbers that networks are shown."""
        found: Sequence[object] | None = getattr(self, "feature_names_in_", None)
        return found

    def _inputs(self, X: Array) -> Tensor:
        return self._tensor(InputScaling(*self.input_scaling_)(X))

    # --- targets; each task has its own -------------------------------------------------------------------------

    @abstractmethod
    def _values(self, y: Array, *, learn: bool, classes: ArrayLike | None = None) -> Array:
        """y as numbers (n, D): as they are, or the position of the class, which may be learned."""

    @abstractmethod
    def _learn_scales(self, values: Array, weight: Array | None = None) -> None:
        """What is needed to bring values to unit scale."""

    @abstractmethod
    def _n_outputs(self, values: Array) -> int:
        """Of the network."""

    @abstractmethod
    def _target_tensor(self, values: Array) -> Tensor:
        """For the likelihood, at unit scale."""

    # --- predictions; each method has its own -------------------------------------------------------------------

    @abstractmethod
    def _standard_dist(self, X: ArrayLike) -> Predictive:
        """The predictive distribution at the rows of X, targets at unit scale."""

    @abstractmethod
    def _chunks(self, X: ArrayLike) -> Iterator[Predictive]:
        """The same for some rows after the other, so that many fit into memory."""

    @abstractmethod
    def pred_dist(self, X: ArrayLike) -> Predictive:
        """The predictive distribution of new observations at the rows of X."""

    # --- files --------------------------------------------------------------------------------------------------

    @abstractmethod
    def fitted_state(self) -> dict[str, Any]:
        """What fitting produced beside attributes that are plain values: `tensors`, and `meta` for a JSON header."""

    @abstractmethod
    def restore_fitted_state(self, state: dict[str, Any]) -> None:
        """Takes in what `fitted_state` gave; the other fitted attributes are in place already."""


class RegressionEstimator(RegressorMixin, DistributionalEstimator):  # type: ignore[misc]
    """Regression with one or several outputs, targets standardised."""

    _is_classifier = False
    n_outputs_: int
    _y_is_1d: bool
    target_mean_: Array
    target_scale_: Array

    def _values(self, y: Array, *, learn: bool, classes: ArrayLike | None = None) -> Array:
        columns = y.reshape(len(y), -1).astype(np.float64)
        if learn:
            self.n_outputs_, self._y_is_1d = columns.shape[1], y.ndim == 1
        if columns.shape[1] != self.n_outputs_:
            raise ValueError(f"y has {columns.shape[1]} outputs, the model was started with {self.n_outputs_}")
        return columns

    def _learn_scales(self, values: Array, weight: Array | None = None) -> None:
        largest = np.abs(values).max(initial=0.0)
        if largest and not 1 / LARGEST_TARGET <= largest <= LARGEST_TARGET:
            raise ValueError(
                f"y goes up to {largest:.3g}, whose square cannot be computed with; divide it by {largest:.0e} "
                "and multiply predictions by it"
            )
        scaler = StandardScaler().fit(values, sample_weight=weight)
        self.target_mean_, self.target_scale_ = scaler.mean_, scaler.scale_

    def _n_outputs(self, values: Array) -> int:
        return int(values.shape[1])

    def _target_tensor(self, values: Array) -> Tensor:
        return self._tensor((values - self.target_mean_) / self.target_scale_)

    def _original(self, predictive: Predictive) -> RegressionPredictive:
        assert isinstance(predictive, RegressionPredictive)
        shift_and_scale = np.abs([self.target_mean_, self.target_scale_])
        largest = shift_and_scale.max()
        # Variances of very large or small targets are no float32.
        kind = self._dtype if self.target_scale_.min() >= 1e-15 and largest <= 1e15 else torch.float64
        scale, shift = (torch.as_tensor(a, dtype=kind, device=self._device) for a in (self.target_scale_, self.target_mean_))
        return predictive.affine(scale, shift)

    def _original_chunks(self, X: ArrayLike) -> Iterator[RegressionPredictive]:
        """Predictions in the units of y, for some rows after the other."""
        return (self._original(chunk) for chunk in self._chunks(X))

    def pred_dist(self, X: ArrayLike) -> RegressionPredictive:
        """The predictive distribution of new observations at the rows of X, in the units of y."""
        return self._original(self._standard_dist(X))

    def _gather(self, X: ArrayLike, *parts: Callable[[RegressionPredictive], Tensor]) -> list[Array]:
        """Rows of some summaries of the prediction, chunk by chunk; outputs (n, ..., D) lose D where y had one column."""
        pieces: list[list[Array]] = [[] for _ in parts]
        for predictive in self._original_chunks(X):
            for piece, part in zip(pieces, parts, strict=True):
                piece.append(part(predictive).cpu().numpy())
        arrays = [np.concatenate(piece) for piece in pieces]
        return [a[..., 0] if self._y_is_1d else a for a in arrays]

    def predict(self, X: ArrayLike, return_std: bool = False, return_cov: bool = False) -> Any:
        """The predictive mean, with the standard deviation, or the covariance of the outputs, of a new observation.

        Both include the noise of the data. `return_cov` gives (n, D, D) for D outputs.
        """
        if return_std and return_cov:
            raise ValueError("choose one of return_std and return_cov")
        if return_std:
            mean, std = self._gather(X, lambda p: p.mean, lambda p: p.std)
            return mean, std
        if return_cov:
            mean, covariance = self._gather(X, lambda p: p.mean, lambda p: p.covariance)
            return mean, (covariance[..., None] if self._y_is_1d else covariance)
        return self._gather(X, lambda p: p.mean)[0]

    def predict_quantiles(self, X: ArrayLike, quantiles: Sequence[float] = (0.05, 0.5, 0.95)) -> Array:
        """Quantiles of a new observation, (n, len(quantiles)), with a last dimension for several outputs."""
        return self._gather(X, lambda p: p.quantiles(list(quantiles)).transpose(0, 1))[0]

    def predict_interval(self, X: ArrayLike, coverage: float = 0.9) -> tuple[Array, Array]:
        """Lower and upper ends of central intervals that hold a new observation with this probability."""
        ends = self._gather(X, lambda p: torch.stack(p.interval(coverage), 1))[0]
        return ends[:, 0], ends[:, 1]

    def sample_y(self, X: ArrayLike, n_samples: int = 1, random_state: int | None = 0) -> Array:
        """Draws of new observations, (n_samples, n) or (n_samples, n, D)."""
        seed = int(check_random_state(random_state).randint(2**31 - 1))
        draws = self.pred_dist(X).sample(n_samples, torch.Generator(device=self._device).manual_seed(seed)).cpu().numpy()
        return draws[..., 0] if self._y_is_1d else draws

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.multi_output = True
        return tags


class ClassificationEstimator(ClassifierMixin, DistributionalEstimator):  # type: ignore[misc]
    """Classification by probabilities, with labels of any kind."""

    _is_classifier = True
    classes_: Array

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

    def _learn_scales(self, values: Array, weight: Array | None = None) -> None:
        """Classes have none."""

    def _n_outputs(self, values: Array) -> int:
        return len(self.classes_)

    def _target_tensor(self, values: Array) -> Tensor:
        return torch.as_tensor(values[:, 0].astype(np.int64), device=self._device)

    def pred_dist(self, X: ArrayLike) -> ClassPredictive:
        """The predictive distribution of the class at the rows of X."""
        found = self._standard_dist(X)
        assert isinstance(found, ClassPredictive)
        return found

    def predict_proba(self, X: ArrayLike) -> Array:
        """Class probabilities, (n, n_classes), in the order of `classes_`."""
        return np.concatenate([chunk.mean.double().cpu().numpy() for chunk in self._chunks(X)])

    def predict_log_proba(self, X: ArrayLike) -> Array:
        return np.log(np.maximum(self.predict_proba(X), np.finfo(np.float64).tiny))

    def predict(self, X: ArrayLike) -> Array:
        """The most probable class of each row."""
        best = self.predict_proba(X).argmax(1)
        return self.classes_[best]


def checked_weight(sample_weight: ArrayLike | None, n_rows: int) -> Array:
    """Once, or as often as the user says, which must make sense."""
    if sample_weight is None:
        return np.ones(n_rows)
    weight: Array = check_array(sample_weight, ensure_2d=False, dtype=np.float64, input_name="sample_weight")
    if weight.shape != (n_rows,):
        raise ValueError(f"sample_weight has shape {weight.shape}, expected ({n_rows},)")
    if (weight < 0).any() or (weight > 0).sum() < 2:
        raise ValueError("sample_weight must not be negative, and not zero for at least two rows")
    return weight
