"""What the estimators share: parameters and training."""

from __future__ import annotations

import time
import warnings
from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import ArrayLike
from rich.console import Console
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils import check_random_state
from torch import Tensor

from bali.estimators import defaults
from bali.estimators.defaults import check_parameters, n_threads
from bali.estimators.distributional import Array, checked_weight
from bali.estimators.encodings import Encoding, ways_to_try
from bali.estimators.fitted_table import FittedTable
from bali.estimators.recipe import LIKELIHOODS, Stack, make_recipe
from bali.estimators.second_models import KnownWays, TrainedRows
from bali.training.progress import training_bar
from bali.training.stack_course import CourseRules, best_constant, initial_means
from bali.training.stream import Stream
from bali.training.table_calibration import calibrated
from bali.training.table_fit import Candidate, Progress, TableFit, held_out_shares, later, merged_rows, train_table
from bali.training.table_posterior import TablePosterior
from bali.training.table_precision import Trained, trained_by_precision

#: Rows that tell the best constant output.
_ENOUGH_ROWS = 20_000


class BALIEstimator(FittedTable):
    """What regressor and classifier share. See `BALIRegressor` for the parameters."""

    _stream: Stream | None
    _known_ways: KnownWays | None = None

    def __init__(
        self,
        hidden_layer_sizes: Sequence[int] | None = None,
        activation: str = "gelu",
        *,
        likelihood: str = "auto",
        n_bins: int | None = None,
        near_rows: bool | None = None,
        step_size: float = 1.0,
        prior_variance: float = 30.0,
        batch_size: int | None = None,
        max_iter: int | None = None,
        validation_fraction: float | None = None,
        n_members: int | None = None,
        n_samples: int = 256,
        n_jobs: int | None = None,
        warm_start: bool = False,
        random_state: int | np.random.RandomState | None = None,
        device: str = "auto",
        verbose: int = 0,
    ) -> None:
        self.hidden_layer_sizes = hidden_layer_sizes
        self.activation = activation
        self.likelihood = likelihood
        self.n_bins = n_bins
        self.near_rows = near_rows
        self.step_size = step_size
        self.prior_variance = prior_variance
        self.batch_size = batch_size
        self.max_iter = max_iter
        self.validation_fraction = validation_fraction
        self.n_members = n_members
        self.n_samples = n_samples
        self.n_jobs = n_jobs
        self.warm_start = warm_start
        self.random_state = random_state
        self.device = device
        self.verbose = verbose

    # --- fitting ------------------------------------------------------------------------------------------------

    def fit(
        self, X: ArrayLike, y: ArrayLike, sample_weight: ArrayLike | None = None, *, time_limit: float | None = None
    ) -> Self:
        """Infer the posterior. `sample_weight` counts a row that many times; `time_limit` is in seconds."""
        if not self.verbose:
            return self._fit(X, y, sample_weight, time_limit, None)
        with training_bar(Console(stderr=True)) as on_step:
            return self._fit(X, y, sample_weight, time_limit, on_step)

    def fit_with_progress(
        self,
        X: ArrayLike,
        y: ArrayLike,
        on_step: Callable[[Progress], None],
        sample_weight: ArrayLike | None = None,
        *,
        time_limit: float | None = None,
    ) -> Self:
        """`fit`, with a function that is told now and then how far it is."""
        return self._fit(X, y, sample_weight, time_limit, on_step)

    def _fit(
        self,
        X: ArrayLike,
        y: ArrayLike,
        sample_weight: ArrayLike | None,
        time_limit: float | None,
        on_step: Callable[[Progress], None] | None,
    ) -> Self:
        started = time.monotonic()
        check_parameters(self.get_params())
        if time_limit is not None and not time_limit > 0:
            raise ValueError(f"time_limit must be a positive number of seconds, got {time_limit}")
        go_on = self.warm_start and hasattr(self, "posterior_")
        rows, y_all = self._validated(X, y, min_rows=2, reset=not go_on)
        weight = checked_weight(sample_weight, len(rows))
        values = self._values(y_all, learn=not go_on)
        rows, values, weight = merged_rows(rows[weight > 0], values[weight > 0], weight[weight > 0])
        defaults.warn_of_few_rows(len(rows))
        deadline = None if time_limit is None else started + 0.8 * time_limit
        self._train(rows, values, weight, deadline, on_step, go_on=go_on)
        self.health().warn(stacklevel=3)
        return self

    def _train(
        self,
        rows: Array,
        values: Array,
        weight: Array,
        deadline: float | None,  # of time.monotonic
        on_step: Callable[[Progress], None] | None,
        *,
        go_on: bool,
        groups: Tensor | None = None,
    ) -> TrainedRows:
        """From distinct rows to the posterior; `groups` where it is known which rows are held out."""
        if not go_on:
            self._start(rows, values, weight)
        recipe = self.recipe_
        groups = self._held_out(rows, values, weight) if groups is None else groups
        few = groups[: recipe.n_groups]
        t, w = self._target_tensor(values), self._tensor(weight)
        encodings, candidates = self._candidates(rows, t, w, weight, go_on=go_on)
        threads = n_threads(self.n_jobs)

        def train(tried: Sequence[Candidate], weight: Tensor, held_out: Tensor, done: int = 0) -> TableFit:
            n_members = recipe.n_members if len(held_out) == len(few) else self._many_members
            settings = n_members, recipe.activation, t, weight, held_out, recipe.seed
            return train_table(tried, *settings, n_jobs=threads, deadline=deadline, on_step=later(on_step, done))

        # Ways of the networks, and of the noise: how near the training rows are tells most of where predictions err.
        near = [i for i, e in enumerate(encodings) if e.near is not None and candidates[0].likelihood.has_true_targets][:1]
        known = [c.x for c in candidates]
        known += [self._encoded(e, rows, self._near_targets(t)) for e in encodings[len(candidates) :]]

        def seen(found: TableFit) -> list[int]:
            return list(dict.fromkeys([*found.kept, *near]))

        def calibrate(found: TableFit, held_out: Tensor) -> tuple[TablePosterior, list[Tensor]]:
            kept, ways = [candidates[i] for i in found.kept], seen(found)
            encoded, sees = [known[i] for i in ways], ways.index(near[0]) if near else 0
            likelihoods, offset, data = [c.likelihood for c in kept], kept[0].offset, (t, w, held_out)
            return calibrated(found.posteriors, likelihoods, encoded, *data, recipe.seed, offset, sees), encoded

        def again(before: Trained, held_out: Tensor) -> Trained:
            is_late = deadline is not None and time.monotonic() > deadline
            if before.posterior.row_noise is None or before.found.outcome != "converged" or is_late:
                return before
            further = partial(train, done=before.found.n_steps)
            return trained_by_precision(before, candidates, t, w, held_out, further, calibrate)

        found = train(candidates, w, few)
        trained = Trained(*calibrate(found, few), found, few)
        if len(groups) > len(few):
            trained = again(trained, groups)
        trained = again(trained, trained.held_out)
        posterior, encoded, found, held_out = trained
        ways = found.kept
        if posterior.row_noise is not None and posterior.row_noise.sees == len(found.kept):
            ways = seen(found)
        self.posterior_, self.encodings_ = posterior, [encodings[i] for i in ways]
        self.recipe_ = replace(recipe, n_members=posterior.stacks[0].n_members, n_groups=len(held_out))
        self._remember(found, [candidates[i] for i in found.kept])
        if found.outcome == "interrupted":
            told = f"training was interrupted after {self.n_iter_:,} steps; the best posterior so far is kept"
            warnings.warn(told, ConvergenceWarning, stacklevel=4)
        return TrainedRows(encoded[: len(ways)], t, w, held_out, found.outcome == "interrupted", groups)

    @property
    def _many_members(self) -> int:
        """Of each way that is trained again by precision."""
        recipe, is_open = self.recipe_, self.n_members is None and self.recipe_.likelihoods == ("gaussian",)
        return max(recipe.n_members, defaults.MEMBERS_BY_PRECISION) if is_open else recipe.n_members

    def _held_out(self, rows: Array, values: Array, weight: Array) -> Tensor:
        """Groups (G, n) of held-out rows, as shares of their weights: those of the first training, and perhaps more."""
        recipe, n_members = self.recipe_, self._many_members
        share, n_groups = recipe.held_out_share, recipe.n_groups
        if share == 0.0:
            return torch.zeros(1, len(rows), dtype=self._dtype, device=self._device)
        if n_members > recipe.n_members:  # half of the rows, at most
            n_groups = max(n_groups, min(n_members // 2, int(0.5 / share)))
        return self._tensor(held_out_shares(rows, values, weight, n_groups, share, recipe.seed))

    def _candidates(
        self, rows: Array, t: Tensor, w: Tensor, weight: Array, *, go_on: bool
    ) -> tuple[list[Encoding], list[Candidate]]:
        """Ways of seeing the table, and the encoding of each."""
        recipe, found, encodings = self.recipe_, list[Candidate](), list[Encoding]()
        if go_on:
            of_stacks = zip(self.encodings_, recipe.stacks, self.posterior_.stacks, strict=False)
            for encoding, stack, posterior in of_stacks:
                likelihood, sizes = LIKELIHOODS[stack.likelihood](), stack.layer_sizes[1:]
                start = [layer.mean.to(self._dtype) for layer in posterior.layers]
                x, offset = self._encoded(encoding, rows, self._near_targets(t)), self.posterior_.offset
                found.append(Candidate(encoding.name, x, sizes, likelihood, recipe.course, offset, start))
            return self.encodings_, found
        near_targets, known = self._near_targets(t) if recipe.near_rows else None, self._known_ways
        scaled = self._scaled(rows)
        ways = known.encodings if known else ways_to_try(rows, scaled, weight, recipe.bins, near_targets, recipe.seed)
        for name in recipe.likelihoods:
            likelihood, offset = LIKELIHOODS[name](), None
            n_outputs = self._n_network_outputs(likelihood, t)
            if not likelihood.has_true_targets:
                few = slice(None, None, -(-len(t) // _ENOUGH_ROWS))  # rows are sorted: every so many are a fair sample
                offset = best_constant(likelihood, t[few], w[few], n_outputs).to(self._dtype)
            for encoding, hidden, course, shown in self._ways(ways):
                label = shown if len(recipe.likelihoods) == 1 else f"{name}, {shown}"
                x, sizes = self._encoded(encoding, rows, near_targets), (*hidden, n_outputs)
                found.append(Candidate(label, x, sizes, likelihood, course, offset))
                encodings.append(encoding)
        return encodings, found

    def _ways(self, encodings: Sequence[Encoding]) -> list[tuple[Encoding, tuple[int, ...], CourseRules, str]]:
        """Encoding, hidden layers, prior and name of each candidate. A linear model is the last: where rows are few for the
        columns, bends can hardly be told from noise."""
        hidden, course = self.recipe_.hidden, self.recipe_.course
        found = [(encoding, hidden, course, encoding.name) for encoding in encodings]
        for factor in defaults.prior_factors(self.recipe_.n_columns)[1:]:
            rough = replace(course, prior_variance=factor * course.prior_variance)
            found.append((encodings[0], hidden, rough, f"{encodings[0].name}, rough"))
        return [*found, (encodings[0], (), course, "a linear model")] if hidden else found

    def _near_targets(self, t: Tensor) -> Array:
        """What is averaged of near rows, (n, T)."""
        return (self._known_ways.targets if self._known_ways else t).double().cpu().numpy()

    def _n_network_outputs(self, likelihood: Any, t: Tensor) -> int:
        return int(likelihood.n_outputs(t))

    def _remember(self, found: TableFit, kept: Sequence[Candidate]) -> None:
        """The course of the training, as attributes."""
        names = {cls: name for name, cls in LIKELIHOODS.items()}
        stacks = tuple(
            Stack(names[type(c.likelihood)], tuple(p.sizes), p.prior_variances, e.n_near, e.n_waves)
            for c, p, e in zip(kept, found.posteriors, self.encodings_, strict=False)
        )
        self.recipe_ = self.recipe_.with_stacks(stacks)
        self.candidate_scores_ = found.scores
        self.n_iter_ = max(course.step for course in found.courses)
        self.n_seen_, self._stream, self._losses = self.recipe_.n_rows, None, []
        self.refused_ = sum(course.refused for course in found.courses)
        self.loss_curve_ = found.losses
        self.validation_steps_ = [step for step, _ in found.validation]
        self.validation_scores_ = [score for _, score in found.validation]

    def _start(self, X: Array, values: Array, weight: Array) -> None:
        """Scales and settings for the data at hand."""
        self._learn_scales(values, weight)
        self._learn_input_scales(X, weight)
        seed = int(check_random_state(self.random_state).randint(2**31 - 1))
        size: dict[str, Any] = {"n_rows": float(weight.sum()), "n_distinct": len(X), "n_columns": X.shape[1]}
        kinds: dict[str, Any] = {"n_outputs": self._n_outputs(values), "likelihoods": self._likelihood_names()}
        self.recipe_ = make_recipe(self.get_params(), **size, **kinds, seed=seed)

    def partial_fit(
        self,
        X: ArrayLike,
        y: ArrayLike,
        classes: ArrayLike | None = None,
        sample_weight: ArrayLike | None = None,
        *,
        output_only: bool = False,
        forget: float = 0.0,
    ) -> Self:
        """Learn from one batch, with nothing held out. The first batch sets the scales of inputs and targets.

        It is one step of all layers, after which the posterior is about the new means, with the averages of the statistics
        so far. With `output_only`, for numbers with Gaussian noise, other layers stay, and the posterior of the output
        layers and the noise is exactly that of all rows: in whatever parts they come. `forget` is the share of the earlier
        rows that fades. `health()` says when the last batches are less likely than those before them.
        """
        if not 0.0 <= forget < 1.0:
            raise ValueError(f"forget must be at least 0 and below 1, got {forget}")
        first = not hasattr(self, "posterior_")
        check_parameters(self.get_params())
        rows, y_all = self._validated(X, y, min_rows=2 if first else 1, reset=first)
        weight = checked_weight(sample_weight, len(rows)) if len(rows) > 1 else np.ones(len(rows))
        values = self._values(y_all, learn=first, classes=classes)
        if output_only:
            return self._partial_fit_of_outputs(X, values, weight, forget)
        if first:
            self._start(rows, values, weight)
            self.encodings_ = [Encoding.learn(rows, 0, weight)]
            self.n_iter_, self.n_seen_, self.refused_, self.loss_curve_ = 0, 0.0, 0, []
            self.validation_steps_, self.validation_scores_, self.candidate_scores_ = [], [], {}
        t, w = self._target_tensor(values), self._tensor(weight)
        batch = self._encoded(self.encodings_[0], rows, self._near_targets(t)), t, w
        self._stream = stream = getattr(self, "_stream", None) or self._new_stream(batch, first=first)
        stream.n_seen *= 1.0 - forget
        self._watch(-stream.step(*batch))
        self.n_iter_, self.n_seen_ = self.n_iter_ + 1, stream.n_seen
        self.posterior_ = stream.posterior(self.recipe_.seed)
        if first:
            stack, name = self.posterior_.stacks[0], self.recipe_.likelihoods[0]
            self.recipe_ = self.recipe_.with_stacks((Stack(name, tuple(stack.sizes), stack.prior_variances),))
        return self

    def _partial_fit_of_outputs(self, X: ArrayLike, values: Array, weight: Array, forget: float) -> Self:
        raise ValueError("output_only is for a BALIRegressor that is fitted, to numbers with Gaussian noise")

    def _new_stream(self, batch: tuple[Tensor, Tensor, Tensor], *, first: bool) -> Stream:
        """At the start of a stream, or where a fitted or loaded model goes on."""
        recipe, (x, t, w) = self.recipe_, batch
        likelihood = LIKELIHOODS[recipe.likelihoods[0] if first else self.likelihood_]()
        generator = torch.Generator(device=self._device).manual_seed(recipe.seed)
        if first:
            n_outputs = self._n_network_outputs(likelihood, t)
            means = initial_means(recipe.n_members, [x.shape[1], *recipe.hidden, n_outputs], generator, self._dtype)
            offset = None if likelihood.has_true_targets else best_constant(likelihood, t, w, n_outputs).to(self._dtype)
            return Stream(means, recipe.activation, likelihood, recipe.course, batch, generator, offset)
        if len(self.encodings_) > 1:  # a stream has one way of seeing rows
            self.posterior_ = replace(
                self.posterior_, stacks=self.posterior_.stacks[:1], likelihoods=self.posterior_.likelihoods[:1]
            )
            self.encodings_, self.recipe_ = self.encodings_[:1], recipe.with_stacks(recipe.stacks[:1])
        means = [layer.mean.to(self._dtype) for layer in self.posterior_.stacks[0].layers]
        stream = Stream(means, recipe.activation, likelihood, recipe.course, batch, generator, self.posterior_.offset)
        stream.go_on_from(self.posterior_, self.n_seen_, self.n_iter_)
        return stream

    @abstractmethod
    def _likelihood_names(self) -> tuple[str, ...]:
        """Those to try."""
