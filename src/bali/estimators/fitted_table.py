"""An estimator once it is fitted: its predictions, what they rest on, and its file."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import ArrayLike
from sklearn.utils.validation import check_is_fitted, validate_data
from torch import Tensor

from bali.estimators import estimator_files
from bali.estimators.distributional import Array, DistributionalEstimator
from bali.estimators.encodings import Encoding
from bali.estimators.frame_columns import Columns, columns_from_json, learn_columns, named_cells, split_texts
from bali.estimators.input_scaling import InputScaling, OutOfReachError
from bali.estimators.recipe import Recipe
from bali.estimators.table_health import TableHealth, table_health
from bali.inference.health import HealthWarning
from bali.predictive.mixtures import Predictive
from bali.training.drift import WATCHED, has_drifted
from bali.training.table_posterior import TablePosterior

# --- inputs: arrays and frames ----------------------------------------------------------------------------------------


class FrameInputs(DistributionalEstimator):
    """Learns from the training rows what columns there are, and turns rows into numbers by it."""

    _allows_missing: ClassVar[bool] = True
    columns_: Columns

    def _validated(self, X: ArrayLike, y: ArrayLike, *, min_rows: int, reset: bool = True) -> tuple[Array, Array]:
        """Rows of numbers without gaps, and y; `reset` is for the first rows, of which the columns are learnt."""
        numbers, texts = self._split(X, known=not reset)
        rows, y_all = self._checked(numbers, y, min_rows=min_rows, reset=reset)
        return self._features(rows, texts, learn=reset), y_all

    def _checked(self, X: ArrayLike, y: ArrayLike, *, min_rows: int, reset: bool) -> tuple[Array, Array]:
        return super()._validated(X, y, min_rows=min_rows, reset=reset)

    def _rows(self, X: ArrayLike) -> Array:
        """Of new rows."""
        check_is_fitted(self, "columns_")
        numbers, texts = self._split(X, known=True)
        finite: dict[str, Any] = {"dtype": np.float64, "ensure_all_finite": "allow-nan"}
        return self._features(validate_data(self, numbers, reset=False, **finite), texts, learn=False)

    def _split(self, X: ArrayLike, *, known: bool) -> tuple[Any, dict[int, Array]]:
        if known and hasattr(X, "columns"):  # whether they are the same is asked before what they hold
            validate_data(self, X, reset=False, skip_check_array=True)
        return split_texts(X, self.columns_ if known else None)

    def _features(self, rows: Array, texts: Mapping[int, Array], *, learn: bool) -> Array:
        cells = named_cells(rows, texts, getattr(self, "feature_names_in_", None))
        if learn:
            self.columns_ = learn_columns(cells)
        return self.columns_.features(cells)

    def _input_names(self) -> Sequence[object] | None:
        has_names = hasattr(self, "feature_names_in_") or self.columns_.categorical  # else places say it better
        return self.columns_.feature_names if has_names else None

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = True  # not "categorical": scikit-learn's checks would then try whole numbers only
        return tags


# --- the fitted model -------------------------------------------------------------------------------------------------


#: Numbers of a prediction at once: components × rows × outputs.
_NUMBERS_AT_ONCE = 2**21
#: What is said of a stream that has changed.
DRIFT = (
    "the last batches are less likely than those before them: has what they come from changed? partial_fit(..., forget=0.1) "
    "lets a tenth of the earlier rows fade with each batch"
)


class FittedTable(FrameInputs):
    """What needs only what fitting left."""

    _bends_inputs = True
    n_samples: int  # a parameter
    recipe_: Recipe
    posterior_: TablePosterior
    encodings_: list[Encoding]  # of each stack of the posterior, and one more if only its noise sees near rows
    candidate_scores_: dict[str, float]
    n_iter_: int
    n_seen_: float  # rows, by their weights
    refused_: int  # steps that were not taken
    loss_curve_: list[float]
    _losses: Sequence[float] = ()  # of the last batches of a stream, before they were learnt from
    validation_steps_: list[int]
    validation_scores_: list[float]

    @property
    def _dtype(self) -> torch.dtype:
        found: torch.dtype = getattr(torch, self.recipe_.dtype)
        return found

    @property
    def n_members_(self) -> int:
        """Of all stacks together."""
        return self.posterior_.n_members

    @property
    def encoding_(self) -> list[str]:
        """How the columns are shown to the networks that were kept."""
        return [encoding.name for encoding, _ in zip(self.encodings_, self.posterior_.stacks, strict=False)]

    @property
    def likelihood_(self) -> str:
        """The likelihood that was kept."""
        return self.recipe_.stacks[0].likelihood

    # --- streams --------------------------------------------------------------------------------------------------

    @property
    def drifted_(self) -> bool:
        """Whether the last batches of a stream are less likely than those before them."""
        return has_drifted(self._losses)

    def _watch(self, loss: float) -> None:
        """Keep the loss of a batch before it is learnt from, and warn when batches have become less likely."""
        knew = self.drifted_
        self.loss_curve_ = [*self.loss_curve_, loss]
        self._losses = [*self._losses, loss][-WATCHED:]
        if self.drifted_ and not knew:
            warnings.warn(DRIFT, HealthWarning, stacklevel=4)

    # --- prediction -----------------------------------------------------------------------------------------------

    def _encoded(self, encoding: Encoding, rows: Array, targets: Array | None = None) -> Tensor:
        """With targets of rows that are learnt from, and may be among the near rows."""
        return self._tensor(encoding(rows, self._scaled(rows), targets))

    def _scaled(self, rows: Array) -> Array:
        try:
            return InputScaling(*self.input_scaling_)(rows)
        except OutOfReachError as error:
            raise error.named(self.columns_.feature_names[error.column]) from None

    def encoded_rows(self, X: Any) -> list[Tensor]:
        """As the networks of each stack see them."""
        rows = self._rows(X)
        return [self._encoded(encoding, rows) for encoding in self.encodings_]

    @property
    def _rows_at_once(self) -> int:
        posterior = self.posterior_
        components = posterior.n_members if posterior.is_regression else max(self.n_samples, posterior.n_members)
        widest = max(max(stack.sizes[1:]) for stack in posterior.stacks)
        at_once = max(64, _NUMBERS_AT_ONCE // (components if posterior.is_regression else posterior.n_members) // widest)
        return min(at_once, max(64, 8 * _NUMBERS_AT_ONCE // components // self.recipe_.n_outputs))

    def _chunks(self, X: ArrayLike, at_once: int | None = None) -> Iterator[Predictive]:
        check_is_fitted(self, "posterior_")
        rows, posterior = self._rows(X), self.posterior_
        at_once = at_once or self._rows_at_once
        for start in range(0, len(rows), at_once):
            part = rows[start : start + at_once]
            try:
                encoded = [self._encoded(encoding, part) for encoding in self.encodings_]
            except OutOfReachError as error:
                raise error.below(start) from None
            yield posterior.predictive(encoded, self.n_samples)

    def _standard_dist(self, X: ArrayLike) -> Predictive:
        chunks = list(self._chunks(X))
        return chunks[0].joined(chunks[1:])

    def check_prediction(self) -> None:
        """Raises if the posterior cannot predict; the matrices of a file that somebody made need not be covariances."""
        x = [torch.zeros(1, e.n_inputs, dtype=self._dtype, device=self._device) for e in self.encodings_]
        self.posterior_.predictive(x, 1).sample(1, torch.Generator(device=self._device).manual_seed(0))

    def health(self) -> TableHealth:
        """What was chosen, and each layer's degrees of freedom and condition; and what is off, if anything."""
        check_is_fitted(self, "posterior_")
        found = table_health(self.recipe_, self.posterior_, self.encoding_, self.candidate_scores_, self.refused_)
        more = (DRIFT,) if self.drifted_ else ()
        return replace(found, chosen=self.columns_.summary | found.chosen, drift=more)

    # --- files --------------------------------------------------------------------------------------------------

    def __getstate__(self) -> dict[str, Any]:
        state: dict[str, Any] = super().__getstate__()
        if "posterior_" in state:  # as plain as in a file; __setstate__ builds the rest anew
            gone = ("recipe_", "posterior_", "encodings_", "columns_", "_stream", "_losses", "logarithms_")
            state = {name: value for name, value in state.items() if name not in gone} | {"fitted_": self.fitted_state()}
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        saved = state.get("fitted_")
        super().__setstate__({k: v for k, v in state.items() if k != "fitted_"})
        if saved is not None:
            self.restore_fitted_state(saved)

    def fitted_state(self) -> dict[str, Any]:
        """The recipe, the posterior and the encodings."""
        meta, tensors = estimator_files.to_plain(self.posterior_, self.encodings_)
        plain = {"recipe": self.recipe_.to_json(), "posterior": meta, "columns": self.columns_.to_json()}
        return {"meta": plain, "tensors": tensors}

    def restore_fitted_state(self, state: dict[str, Any]) -> None:
        """Build what `fitted_state` gave."""
        self.recipe_ = Recipe.from_json(state["meta"]["recipe"])
        self.columns_ = columns_from_json(state["meta"]["columns"])
        plain = state["meta"]["posterior"], state["tensors"]
        self.posterior_, self.encodings_ = estimator_files.from_plain(self.recipe_, *plain, self._device)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the fitted model to one file, which `bali.load` reads without executing anything."""
        check_is_fitted(self, "posterior_")
        estimator_files.save(self, path)
