"""What the estimators share: parameters, training, chunks of predictions, files."""

from __future__ import annotations

import os
import warnings
from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any, ClassVar, Self

import numpy as np
import torch
from numpy.typing import ArrayLike
from rich.console import Console
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted, validate_data
from torch import Tensor

from bali import defaults, estimator_files
from bali.activations import ACTIVATIONS
from bali.estimators.distributional import Array, DistributionalEstimator
from bali.estimators.weights import checked_weight
from bali.folds import merged_rows, validation_masks
from bali.health import Health, layer_health
from bali.held_out import Part, predict_held_out
from bali.inference import LayerwiseInference
from bali.likelihoods import Likelihood
from bali.mlp import draw_weights, stacked_mlp, unit_variances
from bali.plan import Plan
from bali.predictive import Predictive
from bali.progress import training_bar
from bali.settings import Reparam
from bali.threads import threads_for
from bali.training import Progress, train
from bali.widening import widened

#: Weight samples of each member for what is fitted on held-out rows.
CALIBRATION_SAMPLES = 32


class BALIEstimator(DistributionalEstimator):
    """What regressor and classifier share. See `BALIRegressor` for the parameters."""

    _likelihood: ClassVar[type[Likelihood]]
    _bends_inputs = True
    inference_: LayerwiseInference
    prior_variance_: list[float]
    linear_: list[bool]
    #: How many times wider the prior is in predictions, see `defaults.prior_widening`; older files do not have it.
    prior_widening_: float = 1.0

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
        if not go_on:
            self._start(rows, values, weight)
        masks = None
        if self.early_stopping:
            shared = self._is_classifier and defaults.shares_held_out_rows(len(rows))
            masks = validation_masks(rows, values, self.n_members_, self.validation_fraction, self.seed_, shared=shared)
            masks = masks if masks.any() else None
        generator = torch.Generator(device=self._device).manual_seed(self.seed_)
        with threads_for(self.layer_sizes_):
            self.inference_, history = train(
                self.inference_,
                len(self.prior_variance_),
                self._inputs(rows),
                self._target_tensor(values),
                self._tensor(weight),
                None if masks is None else torch.as_tensor(masks, device=self._device),
                self._plan(len(rows)),
                generator,
                on_step,
            )
        self._calibrate(rows, values, weight, masks)
        self.prior_variance_ = [self.prior_variance_[c] for c in history.chosen]
        self.linear_ = [self.linear_[c] for c in history.chosen]
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
            warnings.warn("training was interrupted; the best posterior so far is kept", ConvergenceWarning, stacklevel=3)
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
        self.seed_ = int(check_random_state(self.random_state).randint(2**31 - 1))
        # Rows in float64 cost little while they are few, and make results independent of their order.
        self.dtype_ = "float64" if X.size <= 2**10 else "float32"
        self.n_train_ = float(weight.sum())
        hidden = self.hidden_layer_sizes
        if hidden is None:
            hidden = defaults.hidden_layer_sizes(self.n_train_, X.shape[1])
        self.layer_sizes_ = [X.shape[1], *hidden, self._n_outputs(values)]
        own = defaults.members(self.n_train_, X.shape[1], classes=self._is_classifier)
        self.n_members_ = own if self.n_members is None else self.n_members
        candidates = self._candidates()
        if not validated:  # nothing can be chosen: the weakest, whatever the size of a first batch
            candidates = candidates[-1:]
        self.prior_widening_ = defaults.prior_widening(self.n_train_, X.shape[1], classes=self._is_classifier)
        self.prior_variance_ = [c.variance for c in candidates]
        self.linear_ = [c.linear for c in candidates]
        self.inference_ = self._build()

    @property
    def max_steps_(self) -> int:
        """Of a fit to this many rows."""
        return self._plan(round(self.n_train_)).max_steps

    def _plan(self, n_rows: int) -> Plan:
        """Of a training on rows that count `n_train_` times in all."""
        size = self.n_train_, self.n_features_in_, self.batch_size
        own = defaults.plan(*size, classes=self._is_classifier, n_distinct=n_rows)
        given: dict[str, Any] = {"max_steps": self.max_iter, "ema_rate": self.ema_rate, "patience": self.n_iter_no_change}
        return replace(own, **{name: value for name, value in given.items() if value is not None})

    @property
    def _stream_rate(self) -> float:
        return defaults.STREAM_RATE if self.ema_rate is None else self.ema_rate

    def _candidates(self) -> list[defaults.Candidate]:
        """From the strongest prior to the weakest."""
        variance = self.prior_variance
        if variance is None:
            return list(defaults.candidates(self.n_train_, self.n_features_in_, classes=self._is_classifier))
        return [defaults.Candidate(v) for v in (sorted(variance) if isinstance(variance, Sequence) else [variance])]

    def _build(self) -> LayerwiseInference:
        """An inference before its first step, with `n_members_` members for each candidate."""
        prior_variances, n_members = self.prior_variance_, self.n_members_
        linear = np.repeat(self.linear_, n_members).tolist()
        module = stacked_mlp(len(linear), self.layer_sizes_, self.activation, linear)
        module.to(self._device, getattr(torch, self.dtype_))
        first = defaults.first_variance(self.n_train_, self.layer_sizes_[0], classes=self._is_classifier)
        unit = unit_variances(self.layer_sizes_, first)
        generator = torch.Generator(device=self._device).manual_seed(self.seed_)
        variance = self._tensor(np.repeat(prior_variances, n_members))
        initial = self._tensor(np.repeat([defaults.initial_variance(v) for v in prior_variances], n_members))
        draw_weights(module, unit, generator, initial)
        own_size = defaults.effective_size(self.n_train_, classes=self._is_classifier)
        return LayerwiseInference(
            module,
            self._likelihood(),
            max(round(self.n_train_), 1),
            step_size=self.step_size,
            ema_rate=self._stream_rate,
            prior_variance={name: variance * v for name, v in unit.items()},
            noise_floor=self.noise_floor,
            output_noise_floor=self.output_noise_floor,
            effective_size=own_size if self.effective_size is None else self.effective_size,
            reparam=self.reparam,
            target_noise=self.target_noise,
            process_group=None,  # data are those of this process
            generator=generator,
        )

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
        log_likelihood = self.inference_.step(x, t, self._stream_rate, w)
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

    def _predictor(self) -> LayerwiseInference:
        """The posterior that predictions are drawn from."""
        first_only = defaults.like_images(self.n_train_, self.n_features_in_, classes=self._is_classifier)
        return widened(self.inference_, self.prior_widening_, first_only=first_only)

    def _samples_per_member(self) -> int:
        return -(-self.n_samples // (self.n_members_ * len(self.prior_variance_)))

    def _chunks(self, X: ArrayLike) -> Iterator[Predictive]:
        rows = self._rows(X)
        with threads_for(self.layer_sizes_):
            yield from self._predictor().predict_chunks(rows, self._samples_per_member())

    def _standard_dist(self, X: ArrayLike) -> Predictive:
        rows = self._rows(X)
        with threads_for(self.layer_sizes_):
            return self._predictor().predict(rows, self._samples_per_member())

    def health(self) -> Health:
        """Degrees of freedom, condition, noise, jitter and evidence of each layer; and what is off, if anything."""
        check_is_fitted(self, "inference_")
        return layer_health(self.inference_)

    # --- files --------------------------------------------------------------------------------------------------

    def __getstate__(self) -> dict[str, Any]:
        state: dict[str, Any] = super().__getstate__()
        if "inference_" in state:  # a compact, plain form; __setstate__ builds the rest anew
            state = state | {"inference_": self.fitted_state()}
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        saved = state.get("inference_")
        super().__setstate__({k: v for k, v in state.items() if k != "inference_"})
        if saved is not None:
            self.restore_fitted_state(saved)

    def fitted_state(self) -> dict[str, Any]:
        """The posterior of every layer, and how far training is."""
        return self.inference_.state_dict()

    def restore_fitted_state(self, state: dict[str, Any]) -> None:
        """Build the inference that the fitted attributes describe and put it in this state."""
        self.inference_ = self._build()
        self.inference_.load_state_dict(state)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the fitted model to one file, which `bali.load` reads without executing anything."""
        check_is_fitted(self, "inference_")
        estimator_files.save(self, path)
