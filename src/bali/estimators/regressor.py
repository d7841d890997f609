"""Regression."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import ArrayLike
from sklearn.exceptions import ConvergenceWarning
from sklearn.metrics import d2_tweedie_score
from sklearn.utils.validation import check_consistent_length, check_is_fitted, validate_data
from torch import Tensor

from bali.estimators import second_models
from bali.estimators.base import BALIEstimator
from bali.estimators.distributional import Array, RegressionEstimator
from bali.estimators.encodings import Encoding, distinct
from bali.estimators.model_schema import BALI_REGRESSOR, LOGARITHMS
from bali.estimators.recipe import CHOICES, LIKELIHOODS
from bali.estimators.second_models import KnownWays, Logarithms, TrainedRows, are_likelier, may_be_counts
from bali.estimators.table_health import TableHealth
from bali.estimators.table_rows import table_regression, with_rows
from bali.predictive import metrics
from bali.predictive.durations import given_bounds
from bali.predictive.mixtures import Predictive
from bali.training.calibration import Part
from bali.training.conditioning import Conditioned
from bali.training.stream import Stream
from bali.training.table_calibration import held_out_predictions, in_common
from bali.training.table_fit import Progress, half_of

#: Likelihoods of durations, whose y has two numbers a row: from when on, and until when, it may have ended.
DURATIONS = ("weibull", "log_normal_duration")


class BALIRegressor(RegressionEstimator, BALIEstimator):
    """Regression with a full predictive distribution, for one or several outputs. Nothing has to be set.

    Several ways to show the columns to a network are tried side by side, each with a few independently started networks;
    held-out rows tell which of them are kept and mixed, whether every row has a noise of its own, and how heavy its tails
    are. `health()` says what was chosen.

    Parameters
    ----------
    hidden_layer_sizes, activation
        The networks: "relu", "tanh", "leaky_tanh", "logistic", "gelu" or "identity". By default two hidden layers, whose
        width follows from the size of the table. Rules for this and the other defaults are in `bali.estimators.defaults`.
    likelihood
        What an observation is. "auto" is a number with Gaussian or heavier noise, the same for all rows or not, and where y
        is positive and skewed its logarithm, too, or a count where y is whole numbers from 0 or 1 on, more small ones than
        large, as held-out rows tell; "gaussian" is a number as it is. "counts" and "durations" try several families; or one
        of "poisson", "negative_binomial", "zero_inflated_negative_binomial", "log_normal", "gamma", "beta",
        "mixture_of_gaussians", "weibull", "log_normal_duration". Durations take scikit-survival's structured y, or an array
        of two columns: the time, and 1 where it was over by then, 0 where it was not over yet; or both bounds.
    n_bins
        Bins of each column, beside its value. By default none, several, and waves instead, as held-out rows tell.
    near_rows
        Whether averages of near rows' targets are shown to networks beside the columns, as one more way that is tried, and
        to networks of the noise. By default up to 50,000 rows (of classes from 1,000 on), unless `n_bins` is given. Where
        held-out rows choose it, as `encoding_` and `health()` say, the model and its file hold the rows that it was fitted
        to; with False they never do.
    step_size
        How far a step goes, in units of each output's root-mean-square gradient.
    prior_variance
        Of a weight, times the number of weights that its output is a sum of.
    batch_size, max_iter
        Rows of a step, and steps: by default from the number of rows.
    validation_fraction
        Of the rows, in each of the groups that some members hold out; 0 holds out none.
    n_members
        Independently started networks for each way of seeing the table that is tried. By default ten, fewer from 5,000 rows
        on, but where each row has a noise of its own: then what was kept is learnt again by ten.
    n_samples
        Weight samples for a prediction, where it has no closed form.
    n_jobs
        Threads, where products of matrices are large enough for them; by default as many as torch uses, −1 for all cores.
    warm_start
        Go on from the last `fit`.
    random_state, device, verbose
        As in scikit-learn; the device "auto" is a GPU where there is one; `verbose=1` shows a progress bar.

    Attributes
    ----------
    encoding_, likelihood_, candidate_scores_
        What was kept, and the log-likelihood of held-out rows by all that was tried.
    logarithms_
        What was learnt of the targets' logarithms, or None.
    n_iter_, loss_curve_, validation_steps_, validation_scores_
        The course of the training; scores are log-likelihoods per row of standardised targets.
    """

    file_schema = BALI_REGRESSOR
    logarithms_: Logarithms | None = None

    def _likelihood_names(self) -> tuple[str, ...]:
        known = [name for name in LIKELIHOODS if name != "categorical"]
        if self.likelihood in CHOICES:
            return CHOICES[self.likelihood]
        if self.likelihood not in known:
            raise ValueError(f"likelihood must be one of {', '.join([*CHOICES, *known])}; got {self.likelihood!r}")
        return (self.likelihood,)

    @property
    def _has_durations(self) -> bool:
        return self.likelihood in ("durations", *DURATIONS)

    def _checked(self, X: ArrayLike, y: ArrayLike, *, min_rows: int, reset: bool) -> tuple[Array, Array]:
        if not self._has_durations:
            if getattr(getattr(y, "dtype", None), "names", None):
                raise ValueError("y has fields, as durations have; BALIRegressor(likelihood='durations') learns from it")
            return super()._checked(X, y, min_rows=min_rows, reset=reset)
        finite: dict[str, Any] = {"dtype": np.float64, "ensure_all_finite": "allow-nan"}
        rows = validate_data(self, X, ensure_min_samples=min_rows, reset=reset, **finite)
        bounds = given_bounds(y)
        check_consistent_length(rows, bounds)
        return rows, bounds.numpy()

    def _values(self, y: Array, *, learn: bool, classes: ArrayLike | None = None) -> Array:
        values = super()._values(y, learn=learn, classes=classes)
        if self._has_durations and learn:
            self.n_outputs_, self._y_is_1d = 1, True
        for name in self._likelihood_names():  # while rows have the numbers that users know them by
            kind, given = LIKELIHOODS[name](), torch.as_tensor(values)
            kind.targets(given, torch.zeros(len(values), kind.n_outputs(given)))
        return values

    def _learn_scales(self, values: Array, weight: Array | None = None) -> None:
        if self._likelihood_names() == ("gaussian",):
            super()._learn_scales(values, weight)
            return
        d = 1 if self._has_durations else values.shape[1]
        self.target_mean_, self.target_scale_ = np.zeros(d), np.ones(d)

    def _target_tensor(self, values: Array) -> Tensor:
        if self._likelihood_names() == ("gaussian",):
            return super()._target_tensor(values)
        return torch.as_tensor(values, dtype=torch.float64, device=self._device)

    def _n_outputs(self, values: Array) -> int:
        return 1 if self._has_durations else super()._n_outputs(values)

    # --- a second model: of counts, or of targets' logarithms ---------------------------------------------------------

    def _train(
        self,
        rows: Array,
        values: Array,
        weight: Array,
        deadline: float | None,
        on_step: Callable[[Progress], None] | None,
        *,
        go_on: bool,
        groups: Tensor | None = None,
    ) -> TrainedRows:
        """What may be counts is learnt twice, and so are skewed positive targets, as they are and by their logarithms."""
        before = self.logarithms_ if go_on else None
        self.logarithms_ = None
        tries = self.likelihood == "auto" and (before is not None if go_on else second_models.is_skewed(values, weight))
        tries_counts = self.likelihood == "auto" and not go_on and may_be_counts(values)
        if not (tries or tries_counts):
            return super()._train(rows, values, weight, deadline, on_step, go_on=go_on, groups=groups)
        halfway = None if deadline is None else 0.5 * (time.monotonic() + deadline)
        trained = super()._train(rows, values, weight, halfway, half_of(on_step, 0), go_on=go_on, groups=groups)
        if trained.is_cut_off or not bool(trained.held_out.any()):  # no time, or nothing that tells which is better
            return trained

        def learnt(model: Any, ways: list[Encoding], targets: Array) -> TrainedRows | None:
            """By a second model; None where Ctrl-C came before it knew anything."""
            model._known_ways, ends = KnownWays(ways, trained.targets), (deadline, half_of(on_step, 1))
            try:
                found: TrainedRows = model._train(rows, targets, weight, *ends, go_on=go_on, groups=trained.groups)
            except KeyboardInterrupt:
                warnings.warn("the second training was interrupted; the first is kept", ConvergenceWarning, stacklevel=5)
                return None
            finally:
                model._known_ways = None
            return found

        if tries_counts:
            model = second_models.beside(self, "counts")
            ways = self.encodings_[: len(self.recipe_.stacks)]
            counts = learnt(model, distinct([replace(e, near=None) for e in ways]), values)
            if counts is None:
                return trained
            common = in_common((self.posterior_, trained.held_out), (model.posterior_, counts.held_out))
            if not are_likelier(model._held_out_parts(counts, common), self._held_out_parts(trained, common)):
                return trained
            own = self.get_params()
            self.__dict__.update({name: value for name, value in model.__dict__.items() if name not in own})
            return counts
        model = second_models.beside(self) if before is None else before.model
        logs = learnt(model, list(self.encodings_), np.log(values))
        if logs is not None:
            common = in_common((self.posterior_, trained.held_out), (model.posterior_, logs.held_out))
            of_y, of_log = (m._held_out_parts(known, common) for m, known in ((self, trained), (model, logs)))
            self.logarithms_ = second_models.chosen(model, of_y, of_log)
        return trained

    def _held_out_parts(self, trained: TrainedRows, common: tuple[int, int]) -> list[Part]:
        """Of what two models have in common, in the units of what this one predicts."""
        encoded, y, weight, held_out, *_ = trained
        scale, shift = (torch.as_tensor(a).to(y) for a in (self.target_scale_, self.target_mean_))
        return [
            Part(self._original(part.predictive), part.y * scale + shift, part.weight)
            for part in held_out_predictions(self.posterior_, encoded, y, weight, held_out, common)
        ]

    @property
    def n_members_(self) -> int:
        """Of all stacks together."""
        return super().n_members_ + (0 if self.logarithms_ is None else self.logarithms_.model.n_members_)

    def _original_chunks(self, X: ArrayLike) -> Iterator[Any]:
        logs = self.logarithms_
        if logs is None:
            yield from super()._original_chunks(X)
            return
        check_is_fitted(self, "posterior_")
        at_once = min(self._rows_at_once, logs.model._rows_at_once)
        for of_y, of_log in zip(self._chunks(X, at_once), logs.model._chunks(X, at_once), strict=True):
            yield logs.mixed(self._original(of_y), logs.model._original(of_log))

    def pred_dist(self, X: ArrayLike) -> Any:
        """The predictive distribution of new observations at the rows of X, in the units of y."""
        chunks = list(self._original_chunks(X))
        return chunks[0].joined(chunks[1:])

    def health(self) -> TableHealth:
        found = super().health()
        if self.logarithms_ is None:
            return found
        return replace(found, chosen=found.chosen | {"targets": self.logarithms_.summary})

    def _new_stream(self, batch: tuple[Tensor, Tensor, Tensor], *, first: bool) -> Stream:
        self.logarithms_ = None  # a stream learns targets as they are
        return super()._new_stream(batch, first=first)

    def check_prediction(self) -> None:
        super().check_prediction()
        if self.logarithms_ is not None:
            self.logarithms_.model.check_prediction()

    def fitted_state(self) -> dict[str, Any]:
        state = super().fitted_state()
        if self.logarithms_ is not None:
            meta, tensors = self.logarithms_.to_plain()
            state["meta"]["logarithms"] = meta
            state["tensors"] |= {f"{LOGARITHMS}{name}": tensor for name, tensor in tensors.items()}
        return state

    def restore_fitted_state(self, state: dict[str, Any]) -> None:
        super().restore_fitted_state(state)
        meta, mine = state["meta"].get("logarithms"), len(LOGARITHMS)
        tensors = {name[mine:]: tensor for name, tensor in state["tensors"].items() if name.startswith(LOGARITHMS)}
        self.logarithms_ = None if meta is None else Logarithms.from_plain(self, meta, tensors)

    # --- learning on --------------------------------------------------------------------------------------------------

    def condition(self, X: ArrayLike, y: ArrayLike) -> Conditioned:
        """With these rows added to the output layers' posterior, in closed form and without training.

        For numbers with Gaussian noise, as they are: what was learnt of their logarithms has no part in it. What comes back
        predicts, and can be conditioned on more rows; networks, bins, near rows and scales stay as they are, and so does
        this model.
        """
        return self.output_regression().condition(X, np.asarray(y, dtype=np.float64))

    def output_regression(self, X: Any = None, n_samples: int = 64) -> Conditioned:
        """The output layers as exact regressions, before any rows beyond the training's.

        Neither X nor n_samples has a use here: columns are known, and members take the place of weight samples.
        """
        check_is_fitted(self, "posterior_")
        if not self.posterior_.is_regression:
            raise ValueError(
                f"only numbers with Gaussian noise take in rows in closed form, and this model has {self.likelihood_}; "
                "partial_fit learns from them by a step of all layers"
            )
        return table_regression(self, self.n_seen_, self.recipe_.seed)

    def _partial_fit_of_outputs(self, X: ArrayLike, values: Array, weight: Array, forget: float) -> Self:
        if not hasattr(self, "posterior_") or not self.posterior_.is_regression:
            return super()._partial_fit_of_outputs(X, values, weight, forget)
        before = self._standard_dist(X).log_prob(self._target_tensor(values)).double().cpu().numpy()
        self._watch(-float(np.average(before, weights=weight)))
        self.posterior_ = with_rows(self.posterior_, self.output_regression().condition(X, values, forget, weight))
        self.logarithms_ = None
        self.n_seen_, self._stream = (1.0 - forget) * self.n_seen_ + float(weight.sum()), None
        known = zip(self.recipe_.stacks, self.posterior_.stacks, strict=True)
        self.recipe_ = self.recipe_.with_stacks(
            tuple(replace(stack, prior_variances=own.prior_variances) for stack, own in known)
        )
        return self

    @property
    def n_targets(self) -> int:
        """Columns of y."""
        return self.n_outputs_

    # --- what is asked of counts and durations ------------------------------------------------------------------------

    def predict_median(self, X: ArrayLike) -> Array:
        """Of a new observation: half of them are below."""
        return self._gather(X, lambda p: p.median)[0]

    def predict_survival(self, X: ArrayLike, times: ArrayLike) -> Array:
        """Probabilities of lasting longer than each of these times, (n, len(times)); of durations."""
        check_is_fitted(self, "posterior_")
        if not self._has_durations:
            raise ValueError(f"likelihood={self.likelihood!r} has no survival function; durations have one")
        at = torch.as_tensor(np.atleast_1d(np.asarray(times, dtype=np.float64)))
        if at.dim() != 1 or not bool(((at >= 0) & at.isfinite()).all()):
            raise ValueError("times must be a list of numbers that are not negative")
        parts = [self._original(chunk).survival(at).double().cpu().numpy() for chunk in self._chunks(X)]
        return np.concatenate(parts)

    def score(self, X: ArrayLike, y: ArrayLike, sample_weight: ArrayLike | None = None) -> float:
        """R² of the means; of counts, the share D² of the Poisson deviance that they explain; of durations, the concordance.

        D² is 1 at best and 0 for the mean of y; a concordance is 0.5 for guesses.
        """
        if self._has_durations:
            if sample_weight is not None:
                raise ValueError("the concordance of durations takes no sample_weight")
            return metrics.concordance(self.pred_dist(X), given_bounds(y))
        if set(self._likelihood_names()) <= set(CHOICES["counts"]):
            mean = np.maximum(self.predict(X), np.finfo(np.float64).tiny)
            return float(d2_tweedie_score(y, mean, sample_weight=sample_weight, power=1.0))
        return float(super().score(X, y, sample_weight))

    def _original(self, predictive: Predictive) -> Any:
        return super()._original(predictive) if self.likelihood_ == "gaussian" else predictive
