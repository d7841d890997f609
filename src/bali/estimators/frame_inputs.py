"""Estimators that take frames: missing values, categories and text in X, beside arrays of numbers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
from numpy.typing import ArrayLike
from sklearn.utils.validation import check_is_fitted, validate_data

from bali.estimators.distributional import Array, DistributionalEstimator
from bali.estimators.frame_columns import Columns, learn_columns, named_cells, split_texts


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
