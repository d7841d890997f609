"""Regression."""

from __future__ import annotations

from collections.abc import Iterator

from numpy.typing import ArrayLike

from bali.estimators.base import BALIEstimator
from bali.estimators.distributional import Array, RegressionEstimator
from bali.estimators.model_schema import BALI_REGRESSOR
from bali.predictive.mixtures import Predictive, RegressionPredictive
from bali.training.calibration import fit_noise


class BALIRegressor(RegressionEstimator, BALIEstimator):
    """Regression with a full predictive distribution, for one or several outputs.

    Parameters
    ----------
    hidden_layer_sizes, activation
        The networks: "relu", "tanh", "leaky_tanh", "logistic", "gelu" or "identity". By default two hidden layers, whose
        width follows from the size of the table. Rules for this and the other defaults are in `bali.estimators.defaults`.
    step_size
        α: how far the pseudo-targets move, in units of each output's root-mean-square gradient.
    ema_rate
        β: the rate of the moving averages at the start. By default 0.5, or 0.3 where a step does not see the whole table.
    prior_variance
        Of the weights, for inputs of unit scale: each layer's is this over its number of inputs plus one (first layer: see
        `bali.estimators.mlp.unit_variances`). Several are candidates that are trained side by side; those that validate
        clearly worse are dropped, the others mixed (`prior_variance_`). By default one to three, by the size of the
        table; where rows are few for the columns, one of them is a linear model (`linear_`).
    noise_floor, output_noise_floor
        The least variance of the noise of hidden layers and, in units of the targets' variance, of the output.
    effective_size
        How many observations the statistics count for. By default all rows up to 2,000, beyond that √(2000 n); in a
        classification fewer (`bali.estimators.defaults.effective_size`).
    reparam, target_noise
        See `bali.LayerwiseInference`.
    batch_size
        Rows per step; smaller tables are used whole.
    max_iter, early_stopping, validation_fraction, n_iter_no_change
        At most `max_iter` steps (by default 2,000 or 2,500 for up to 1,000 rows, 1,000 for more), in phases with ever
        smaller steps and slower moving averages. Every 25 steps or more the held-out rows are scored; a phase ends early
        after `n_iter_no_change` scores without improvement (by default 10; 3 for up to 1,000 rows, but for regressions of
        up to three columns). The next one goes on from the best posterior, and the best of all is kept.
    n_members
        Independently started posteriors that are mixed, for each candidate: by default 10 for up to 1,000 rows, 5 for more.
        They are trained in one batch and hold out different rows.
    n_samples
        Weight samples for a prediction, over all members.
    warm_start
        Go on from the last `fit`.
    random_state, device, verbose
        As in scikit-learn; the device "auto" is a GPU where there is one; `verbose=1` shows a progress bar.

    Attributes
    ----------
    noise_scale_, noise_dof_
        What held-out rows say about the noise: its variance as a multiple of the inferred one, and the degrees of freedom
        of its tails (None before any row was held out).
    n_iter_, best_iter_, loss_curve_, validation_steps_, validation_scores_
        The course of the training; scores are log-likelihoods per row of standardised targets.
    """

    file_schema = BALI_REGRESSOR
    noise_scale_: float
    noise_dof_: float | None

    def _calibrate(self, X: Array, values: Array, weight: Array, masks: Array | None) -> None:
        """The noise was inferred with the weights; rows that were not trained on know it better."""
        self.noise_scale_, self.noise_dof_ = 1.0, None
        if masks is not None:
            self.noise_scale_, self.noise_dof_ = fit_noise(self._held_out_parts(X, values, weight, masks))

    def _standard_dist(self, X: ArrayLike) -> Predictive:
        return self._calibrated(super()._standard_dist(X))

    def _chunks(self, X: ArrayLike) -> Iterator[Predictive]:
        return map(self._calibrated, super()._chunks(X))

    def _calibrated(self, predictive: Predictive) -> RegressionPredictive:
        assert isinstance(predictive, RegressionPredictive)
        return predictive.with_noise(self.noise_scale_, self.noise_dof_)
