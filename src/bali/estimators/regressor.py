"""Regression."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike
from sklearn.base import RegressorMixin
from sklearn.preprocessing import StandardScaler
from sklearn.utils import check_random_state
from torch import Tensor

from bali.estimators.base import Array, BALIEstimator
from bali.likelihoods import Gaussian
from bali.predictive import Predictive, RegressionPredictive


class BALIRegressor(RegressorMixin, BALIEstimator):  # type: ignore[misc]
    """Regression with a full predictive distribution, for one or several outputs.

    Parameters
    ----------
    hidden_layer_sizes, activation
        The networks: "relu", "tanh", "leaky_tanh", "logistic", "gelu" or "identity".
    step_size
        α: how far the pseudo-targets move, in units of each output's root-mean-square gradient.
    ema_rate
        β: the rate of the moving averages; it falls when validation stops improving.
    prior_variance
        Of the weights, for inputs of unit scale: each layer's is this over its number of inputs plus one (first layer: see
        `bali.mlp.unit_variances`). Several are candidates that are trained side by side; those that validate clearly
        worse are dropped, the others mixed (`prior_variance_`).
    noise_floor, output_noise_floor
        The least variance of the noise of hidden layers and, in units of the targets' variance, of the output.
    effective_size
        How many observations the statistics count for. By default all rows up to 2,000, beyond that √(2000 n).
    reparam, target_noise
        See `bali.LayerwiseInference`.
    batch_size
        Rows per step; smaller tables are used whole.
    max_iter, early_stopping, validation_fraction, n_iter_no_change
        At most `max_iter` steps. Every 25 steps the held-out rows are scored; after `n_iter_no_change` scores without
        improvement steps are made smaller and the moving average slower, twice, and then training ends. The best posterior
        is kept.
    n_members
        Independently started posteriors that are mixed, for each candidate: by default 10 for up to 500 rows, 5 for more.
        They are trained in one batch and hold out different rows.
    n_samples
        Weight samples for a prediction, over all members.
    warm_start
        Go on from the last `fit`.
    random_state, device, verbose
        As in scikit-learn; the device "auto" is a GPU where there is one; `verbose=1` shows a progress bar.

    Attributes
    ----------
    n_iter_, best_iter_, loss_curve_, validation_steps_, validation_scores_
        The course of the training; scores are log-likelihoods per row of standardised targets.
    """

    _likelihood = Gaussian
    _is_classifier = False

    def _values(self, y: Array, *, learn: bool, classes: ArrayLike | None = None) -> Array:
        columns = y.reshape(len(y), -1).astype(np.float64)
        if learn:
            self.n_outputs_, self._y_is_1d = columns.shape[1], y.ndim == 1
        if columns.shape[1] != self.n_outputs_:
            raise ValueError(f"y has {columns.shape[1]} outputs, the model was started with {self.n_outputs_}")
        return columns

    def _learn_scales(self, values: Array, weight: Array) -> None:
        scaler = StandardScaler().fit(values, sample_weight=weight)
        self.target_mean_, self.target_scale_ = scaler.mean_, scaler.scale_

    def _n_outputs(self, values: Array) -> int:
        return int(values.shape[1])

    def _target_tensor(self, values: Array) -> Tensor:
        return self._tensor((values - self.target_mean_) / self.target_scale_)

    def _calibrate(self, X: Array, values: Array, weight: Array, masks: Array | None) -> None:
        """Nothing: the noise is inferred with the weights."""

    def _original(self, predictive: Predictive) -> RegressionPredictive:
        assert isinstance(predictive, RegressionPredictive)
        return predictive.affine(self._tensor(self.target_scale_), self._tensor(self.target_mean_))

    def pred_dist(self, X: ArrayLike) -> RegressionPredictive:
        """The predictive distribution of new observations at the rows of X, in the units of y."""
        return self._original(super().pred_dist(X))

    def _gather(self, X: ArrayLike, *parts: Callable[[RegressionPredictive], Tensor]) -> list[Array]:
        """Rows of some summaries of the prediction, chunk by chunk; outputs (n, ..., D) lose D where y had one column."""
        pieces: list[list[Array]] = [[] for _ in parts]
        for chunk in self._chunks(X):
            predictive = self._original(chunk)
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
