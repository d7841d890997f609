"""How often each row counts."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike
from sklearn.utils import check_array

from bali.estimators.distributional import Array


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
