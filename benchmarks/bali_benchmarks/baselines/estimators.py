"""Every method of the table as a scikit-learn estimator, with the contract of `BALIRegressor` and `BALIClassifier`."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import ArrayLike
from rich.console import Console
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted, validate_data
from torch import Tensor

from bali.estimators import estimator_files
from bali.estimators.distributional import ClassificationEstimator, DistributionalEstimator, RegressionEstimator
from bali.estimators.model_schema import CLASSIFICATION, INPUTS, REGRESSION, WIDTH, FileSchema
from bali.inference.schema import COUNT, POSITIVE, REAL, Check, ListOf, MapOf
from bali.layers.modules import ACTIVATIONS
from bali.predictive.mixtures import ClassPredictive, Predictive, RegressionPredictive, concatenate
from bali_benchmarks.baselines.method import Method, State, Task
from bali_benchmarks.baselines.selection import Budget, Fitted, OnProgress, fit_members, with_settings
from bali_benchmarks.baselines.steps_bar import steps_bar
from bali_benchmarks.baselines.table import method_class
from bali_benchmarks.threads import threads_for

#: What was chosen, in their files.
_CHOSEN: dict[str, Check] = {
    "layer_sizes_": ListOf(WIDTH, least=2),
    "n_train_": COUNT,
    "seed_": COUNT,
    "settings_": MapOf(REAL),
    "n_iter_": COUNT,
    "noise_factor_": POSITIVE,
    "validation_score_": REAL,
}
#: How many activations a prediction may hold at once.
NUMBERS_AT_ONCE = 2**23


class BaselineEstimator(DistributionalEstimator):
    """What regressor and classifier share. See `BaselineRegressor` for the parameters."""

    fitted_: Fitted

    @property
    def _dtype(self) -> torch.dtype:
        return torch.float32

    def __init__(
        self,
        method: str = "map",
        hidden_layer_sizes: Sequence[int] = (50,),
        activation: str = "relu",
        *,
        settings: Mapping[str, float] | None = None,
        max_iter: int = Budget.steps,
        batch_size: int = Budget.batch_size,
        validation_fraction: float = Budget.validation_fraction,
        n_samples: int = 256,
        random_state: int | np.random.RandomState | None = None,
        device: str = "auto",
        verbose: int = 0,
    ) -> None:
        self.method = method
        self.hidden_layer_sizes = hidden_layer_sizes
        self.activation = activation
        self.settings = settings
        self.max_iter = max_iter
        self.batch_size = batch_size
        self.validation_fraction = validation_fraction
        self.n_samples = n_samples
        self.random_state = random_state
        self.device = device
        self.verbose = verbose

    # --- fitting ------------------------------------------------------------------------------------------------

    def fit(self, X: ArrayLike, y: ArrayLike) -> Self:
        """Choose settings and number of steps on held-out rows, and train on all."""
        if not self.verbose:
            return self._fit(X, y, None)
        with steps_bar(Console(stderr=True)) as on_progress:
            return self._fit(X, y, on_progress)

    def _fit(self, X: ArrayLike, y: ArrayLike, on_progress: OnProgress | None) -> Self:
        kind, budget = self._checked_parameters()
        rows, y_all = self._validated(X, y, min_rows=2)
        values = self._values(y_all, learn=True)
        self._learn_scales(values)
        self._learn_input_scales(rows)
        self.seed_ = int(check_random_state(self.random_state).randint(2**31 - 1))
        self.layer_sizes_ = [rows.shape[1], *self.hidden_layer_sizes, self._n_outputs(values)]
        self.n_train_ = len(rows)
        with threads_for(self.layer_sizes_):
            self.fitted_ = fit_members(
                kind,
                self._inputs(rows)[None],
                self._target_tensor(values)[None],
                hidden_layer_sizes=self.hidden_layer_sizes,
                activation=self.activation,
                n_classes=self._n_classes,
                settings=self.settings,
                budget=budget,
                seed=self.seed_,
                on_progress=on_progress,
            )
        self._describe(self.fitted_)
        if self.fitted_.interrupted:
            warnings.warn("training was interrupted; the best networks so far are kept", ConvergenceWarning, stacklevel=3)
        return self

    def _checked_parameters(self) -> tuple[type[Method], Budget]:
        kind = method_class(self.method)
        if self.activation not in ACTIVATIONS:
            raise ValueError(f"activation must be one of {', '.join(ACTIVATIONS)}; got {self.activation!r}")
        for name in ("max_iter", "batch_size", "n_samples"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")
        budget = replace(
            Budget(), steps=self.max_iter, batch_size=self.batch_size, validation_fraction=self.validation_fraction
        )
        return kind, budget

    @property
    def _n_classes(self) -> int | None:
        return len(self.classes_) if self._is_classifier else None

    def _describe(self, fitted: Fitted) -> None:
        """What was chosen."""
        self.settings_ = fitted.settings[0]
        self.n_iter_ = fitted.steps[0]
        self.noise_factor_ = float(fitted.noise_factor[0])
        self.validation_score_ = fitted.validation_scores[0]

    # --- prediction ---------------------------------------------------------------------------------------------

    def _standard_dist(self, X: ArrayLike) -> Predictive:
        return concatenate(list(self._chunks(X)))

    def _chunks(self, X: ArrayLike) -> Iterator[Predictive]:
        check_is_fitted(self, "fitted_")
        rows = self._inputs(validate_data(self, X, dtype=np.float64, reset=False))
        size = max(1, NUMBERS_AT_ONCE // (self.n_samples * max(self.layer_sizes_[1:])))
        with threads_for(self.layer_sizes_):
            for start in range(0, len(rows), size):
                # The same draws of the weights for every chunk.
                generator = torch.Generator(device=self._device).manual_seed(self.seed_)
                chunk = rows[None, start : start + size]
                yield self._predictive(self.fitted_.outputs(chunk, self.n_samples, generator)[:, 0])

    def _predictive(self, outputs: Tensor) -> Predictive:
        """The mixture over outputs (S, n, D)."""
        if self._is_classifier:
            return ClassPredictive(outputs.softmax(-1))
        noise = self.fitted_.noise_variance().to(outputs.dtype) * torch.eye(outputs.shape[-1]).to(outputs)
        return RegressionPredictive(outputs, noise[None])

    # --- files --------------------------------------------------------------------------------------------------

    def fitted_state(self) -> dict[str, Any]:
        """All that fitting produced beside attributes that are plain values: tensors, and a JSON header of them."""
        return {"meta": {}, "tensors": dict(self.fitted_.state)}

    def restore_fitted_state(self, state: dict[str, Any]) -> None:
        """What `fitted_state` gave, with the other fitted attributes in place."""
        tensors: State = {name: tensor.to(self._device) for name, tensor in state["tensors"].items()}
        like = torch.ones(1, dtype=self._dtype, device=self._device)
        task = Task(
            tuple(self.layer_sizes_), self.activation, 1, self.n_train_, self._is_classifier, like.dtype, like.device
        )
        method = with_settings(method_class(self.method), [self.settings_], like)
        factor = like * self.noise_factor_
        self.fitted_ = Fitted(method, task, tensors, [self.settings_], [self.n_iter_], factor, [self.validation_score_])

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the fitted model to one file, which `bali_benchmarks.baselines.load` reads without executing anything."""
        check_is_fitted(self, "fitted_")
        estimator_files.save(self, path)


class BaselineRegressor(RegressionEstimator, BaselineEstimator):
    """A method to compare BALI with, for regression with one or several outputs.

    Parameters
    ----------
    method
        One of `bali_benchmarks.baselines.METHODS`.
    hidden_layer_sizes, activation
        The networks, as in `BALIRegressor`.
    settings
        The method's own settings. By default they are chosen among the method's `grid` on held-out rows.
    max_iter, batch_size, validation_fraction
        The budget: at most `max_iter` steps of `batch_size` rows, once for all settings side by side on the rows that are
        not held out, and once for the setting chosen, on all rows. How many steps are best is chosen on the held-out rows.
    n_samples
        Draws from the posterior for a prediction.
    random_state, device, verbose
        As in scikit-learn; the device "auto" is a GPU where there is one; `verbose=1` shows a progress bar.

    Attributes
    ----------
    settings_, n_iter_, noise_factor_, validation_score_
        What was chosen: settings, number of steps, the factor on the variance of the noise; and the held-out rows' mean
        log-likelihood for that choice, in nats, of standardised targets.
    """

    file_schema = FileSchema(INPUTS | REGRESSION | _CHOSEN, ("input_scaling_", "target_mean_", "target_scale_"))


class BaselineClassifier(ClassificationEstimator, BaselineEstimator):
    """A method to compare BALI with, for classification. See `BaselineRegressor` for the parameters."""

    file_schema = FileSchema(INPUTS | CLASSIFICATION | _CHOSEN, ("input_scaling_",))
    temperature_ = 1.0  # as the networks say


def load(path: str | os.PathLike[str]) -> DistributionalEstimator:
    """The baseline that `save` wrote."""
    return estimator_files.load_kinds(path, [BaselineRegressor, BaselineClassifier])[0]
