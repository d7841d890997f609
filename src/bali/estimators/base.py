"""What the estimators share: parameters, training, chunks of predictions, files."""

from __future__ import annotations

import os
import warnings
from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import ArrayLike
from rich.console import Console
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted, validate_data
from torch import Tensor

from bali.estimators import defaults, estimator_files
from bali.estimators.distributional import Array, DistributionalEstimator
from bali.estimators.model_schema import PROGRESS
from bali.estimators.recipe import Recipe, TableSize, make_recipe
from bali.estimators.weights import checked_weight
from bali.inference.health import Health
from bali.inference.layerwise import LayerwiseInference
from bali.inference.prediction import NetworkPosterior
from bali.inference.settings import Reparam
from bali.inference.threads import threads_for
from bali.layers.activations import ACTIVATIONS
from bali.predictive.mixtures import Predictive
from bali.training.folds import merged_rows, validation_masks
from bali.training.held_out import Part, predict_held_out
from bali.training.progress import training_bar
from bali.training.race import Progress, train
from bali.training.widening import widened

#: Weight samples of each member for what is fitted on held-out rows.
CALIBRATION_SAMPLES = 32


class BALIEstimator(DistributionalEstimator):
    """What regressor and classifier share. See `BALIRegressor` for the parameters."""

    _bends_inputs = True
    recipe_: Recipe
    inference_: LayerwiseInference

    def __init__(
        self,
        hidden_layer_sizes: Sequence[int] | None = None,
        activation: str = "gelu",
        *,
        step_size: float = 1.0,
        ema_rate: float | None = None,
        prior_variance: float | Sequence[float] | None = None,
        noise_floor: float = 1e-3,
        output_noise_floor: float = 1e-4,
        effective_size: float | None = None,
        reparam: Reparam = "weight",
        target_noise: bool = False,
        batch_size: int = 2048,
        max_iter: int | None = None,
        early_stopping: bool = True,
        validation_fraction: float = 0.1,
        n_iter_no_change: int | None = None,
        n_members: int | None = None,
        n_samples: int = 256,
        warm_start: bool = False,
        random_state: int | np.random.RandomState | None = None,
        device: str = "auto",
        verbose: int = 0,
    ) -> None:
        self.hidden_layer_sizes = hidden_layer_sizes
        self.activation = activation
        self.step_size = step_size
        self.ema_rate = ema_rate
        self.prior_variance = prior_variance
        self.noise_floor = noise_floor
        self.output_noise_floor = output_noise_floor
        self.effective_size = effective_size
        self.reparam = reparam
        self.target_noise = target_noise
        self.batch_size = batch_size
        self.max_iter = max_iter
        self.early_stopping = early_stopping
        self.validation_fraction = validation_fraction
        self.n_iter_no_change = n_iter_no_change
        self.n_members = n_members
        self.n_samples = n_samples
        self.warm_start = warm_start
        self.random_state = random_state
        self.device = device
        self.verbose = verbose

    # --- fitting ------------------------------------------------------------------------------------------------

    def fit(self, X: ArrayLike, y: ArrayLike, sample_weight: ArrayLike | None = None) -> Self:
        """Infer the posterior. `sample_weight` counts a row that many times."""
        if not self.verbose:
            return self._fit(X, y, sample_weight, None)
        with training_bar(Console(stderr=True)) as on_step:
            return self._fit(X, y, sample_weight, on_step)

    def fit_with_progress(
        self, X: ArrayLike, y: ArrayLike, on_step: Callable[[Progress], None], sample_weight: ArrayLike | None = None
    ) -> Self:
        """`fit`, with a function that is told after every step how far it is."""
        return self._fit(X, y, sample_weight, on_step)

    def _fit(
        self,
        X: ArrayLike,
        y: ArrayLike,
        sample_weight: ArrayLike | None,
        on_step: Callable[[Progress], None] | None,
    ) -> Self:
        self._check_parameters()
        go_on = self.warm_start and hasattr(self, "inference_")
        rows, y_all = self._validated(X, y, min_rows=2)
        weight = checked_weight(sample_weight, len(rows))
        values = self._values(y_all, learn=not go_on)
        rows, values, weight = merged_rows(rows[weight > 0], values[weight > 0], weight[weight > 0])
        defaults.warn_of_few_rows(len(rows))
        if go_on:
            fresh = make_recipe(self.get_params(), self._size(rows, values, weight), self.recipe_.seed)
            self.recipe_ = self.recipe_.trained_like(fresh)
        else:
            self._start(rows, values, weight)
        recipe, masks = self.recipe_, None
        if self.early_stopping:
            fraction, shared = self.validation_fraction, recipe.shares_held_out_rows
            masks = validation_masks(rows, values, recipe.n_members, fraction, recipe.seed, shared=shared)
            masks = masks if masks.any() else None
        with threads_for(recipe.layer_sizes):
            self.inference_, history = train(
                self.inference_,
                len(recipe.prior_variances),
                self._inputs(rows),
                self._target_tensor(values),
                self._tensor(weight),
                None if masks is None else torch.as_tensor(masks, device=self._device),
                recipe.plan,
                torch.Generator(device=self._device).manual_seed(recipe.seed),
                on_step,
            )
        self._calibrate(rows, values, weight, masks)
        self.recipe_ = recipe.of_candidates(history.chosen)
        self.n_iter_ = len(history.loss_curve)
        self.best_iter_ = history.best_step
        self.loss_curve_ = history.loss_curve
        self.validation_steps_ = history.validation_steps
        self.validation_scores_ = history.validation_scores
        if history.outcome == "max_iter" and masks is not None:
            warnings.warn(
                f"training stopped after {self.n_iter_:,} steps while the validation score was still improving; "
                "raise max_iter for a better fit",
                ConvergenceWarning,
                stacklevel=3,
            )
        elif history.outcome == "interrupted":
            reached = f"after {self.n_iter_:,} of at most {self.max_steps_:,} steps"
            warnings.warn(
                f"training was interrupted {reached}; the best posterior so far is kept", ConvergenceWarning, stacklevel=3
            )
        self.health().warn(stacklevel=3)
        return self

    def _check_parameters(self) -> None:
        if self.activation not in ACTIVATIONS:
            raise ValueError(f"activation must be one of {', '.join(ACTIVATIONS)}; got {self.activation!r}")
        for name in ("n_members", "n_samples", "max_iter", "batch_size", "n_iter_no_change"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ValueError(f"{name} must be at least 1, got {value}")
        if callable(self.step_size):
            raise ValueError("step_size must be a number: the estimator lowers it from phase to phase itself")
        if not 0.0 < self.validation_fraction < 1.0:
            raise ValueError(f"validation_fraction must lie strictly between 0 and 1, got {self.validation_fraction}")

    def _start(self, X: Array, values: Array, weight: Array, *, validated: bool = True) -> None:
        """A fresh inference for the data at hand."""
        self._learn_scales(values, weight)
        self._learn_input_scales(X, weight)
        seed = int(check_random_state(self.random_state).randint(2**31 - 1))
        self.recipe_ = make_recipe(self.get_params(), self._size(X, values, weight), seed, validated=validated)
        self.inference_ = self.recipe_.inference(self._device)

    @property
    def _dtype(self) -> torch.dtype:
        found: torch.dtype = getattr(torch, self.recipe_.dtype)
        return found

    @property
    def layer_sizes_(self) -> list[int]:
        """Inputs, hidden layers, outputs."""
        return list(self.recipe_.layer_sizes)

    @property
    def n_members_(self) -> int:
        """Of each candidate."""
        return self.recipe_.n_members

    @property
    def prior_variance_(self) -> list[float]:
        """Of the candidates that were kept."""
        return list(self.recipe_.prior_variances)

    @property
    def linear_(self) -> list[bool]:
        """Which of the candidates that were kept are linear models."""
        return list(self.recipe_.linear)

    @property
    def max_steps_(self) -> int:
        """That the last fit could have taken."""
        return self.recipe_.plan.max_steps

    def _size(self, X: Array, values: Array, weight: Array) -> TableSize:
        return TableSize(float(weight.sum()), len(X), X.shape[1], self._n_outputs(values), self._is_classifier)

    def partial_fit(
        self, X: ArrayLike, y: ArrayLike, classes: ArrayLike | None = None, sample_weight: ArrayLike | None = None
    ) -> Self:
        """One step on one batch, without validation. The first batch sets the scales of inputs and targets."""
        first = not hasattr(self, "inference_")
        self._check_parameters()
        rows, y_all = self._validated(X, y, min_rows=2 if first else 1, reset=first)
        weight = checked_weight(sample_weight, len(rows)) if len(rows) > 1 else np.ones(len(rows))
        values = self._values(y_all, learn=first, classes=classes)
        if first:
            self._start(rows, values, weight, validated=False)
            self._calibrate(rows, values, weight, None)
            self.n_iter_, self.loss_curve_ = 0, []
            self.validation_steps_, self.validation_scores_ = [], []
        x, t, w = self._inputs(rows), self._target_tensor(values), self._tensor(weight)
        log_likelihood = self.inference_.step(x, t, self.recipe_.stream_rate, w)
        self.n_iter_ += 1
        self.best_iter_ = self.n_iter_
        self.loss_curve_.append(-float(log_likelihood.mean()))
        return self

    @abstractmethod
    def _calibrate(self, X: Array, values: Array, weight: Array, masks: Array | None) -> None:
        """What is fitted on the held-out rows after training."""

    def _held_out_parts(self, X: Array, values: Array, weight: Array, masks: Array) -> list[Part]:
        """Every held-out row, predicted by the members that did not see it, all candidates mixed."""
        data = self._inputs(X), self._target_tensor(values), self._tensor(weight)
        held_out = torch.as_tensor(masks, device=self._device)
        found = predict_held_out(self._predictor(), *data, held_out, CALIBRATION_SAMPLES)
        return found.parts(range(found.n_candidates))

    # --- prediction ---------------------------------------------------------------------------------------------

    def _rows(self, X: ArrayLike) -> Tensor:
        check_is_fitted(self, "inference_")
        return self._inputs(validate_data(self, X, dtype=np.float64, reset=False))

    def _predictor(self) -> NetworkPosterior:
        """The posterior that predictions are drawn from."""
        given = zip(self.recipe_.layer_names, self.recipe_.prior_widening, strict=True)
        factors = {name: factor for name, factor in given if factor != 1.0}
        return widened(self.inference_.posterior(), self.inference_.state, factors)

    def _samples_per_member(self) -> int:
        return -(-self.n_samples // self.recipe_.stack_size)

    def _chunks(self, X: ArrayLike) -> Iterator[Predictive]:
        rows = self._rows(X)
        with threads_for(self.recipe_.layer_sizes):
            yield from self._predictor().predict_chunks(rows, self._samples_per_member())

    def _standard_dist(self, X: ArrayLike) -> Predictive:
        rows = self._rows(X)
        with threads_for(self.recipe_.layer_sizes):
            return self._predictor().predict(rows, self._samples_per_member())

    def check_prediction(self) -> None:
        """Raises if the posterior cannot predict; the matrices of a file that somebody made need not be covariances."""
        x = torch.zeros(1, self.recipe_.layer_sizes[0], dtype=getattr(torch, self.recipe_.dtype), device=self._device)
        with threads_for(self.recipe_.layer_sizes):
            self._predictor().predict(x, 1)

    def health(self) -> Health:
        """Degrees of freedom, condition, noise, jitter and evidence of each layer; and what is off, if anything."""
        check_is_fitted(self, "inference_")
        return self.inference_.health()

    # --- files --------------------------------------------------------------------------------------------------

    def __getstate__(self) -> dict[str, Any]:
        state: dict[str, Any] = super().__getstate__()
        if "inference_" in state:  # as plain as in a file; __setstate__ builds the rest anew
            state = {name: value for name, value in state.items() if name != "recipe_"} | {"inference_": self.fitted_state()}
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        saved = state.get("inference_")
        super().__setstate__({k: v for k, v in state.items() if k != "inference_"})
        if saved is not None:
            self.restore_fitted_state(saved)

    def fitted_state(self) -> dict[str, Any]:
        """The recipe, the posterior of every layer, and how far training is."""
        state = self.inference_.state_dict()
        progress = {name: state["meta"][name] for name in PROGRESS.fields}
        return {"meta": {"recipe": self.recipe_.to_json(), "progress": progress}, "tensors": state["tensors"]}

    def restore_fitted_state(self, state: dict[str, Any]) -> None:
        """Build the inference that the recipe describes and put it in this state."""
        self.recipe_ = recipe = Recipe.from_json(state["meta"]["recipe"])
        self.inference_ = recipe.inference(self._device)
        fresh, tensors = self.inference_.state_dict(), dict(state["tensors"])
        if len(tensors["generator"]) != len(fresh["tensors"]["generator"]):  # saved on another kind of device
            tensors["generator"] = fresh["tensors"]["generator"]
        output_layer = recipe.layer_names[-1] if recipe.likelihood == "gaussian" else None
        meta = fresh["meta"] | state["meta"]["progress"] | {"output_layer": output_layer}
        self.inference_.load_state_dict({"meta": meta, "tensors": tensors})

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the fitted model to one file, which `bali.load` reads without executing anything."""
        check_is_fitted(self, "inference_")
        estimator_files.save(self, path)
