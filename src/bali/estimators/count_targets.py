"""Targets that may be counts: a model of counts is tried beside that of numbers, and held-out rows tell which is kept."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from bali.estimators.distributional import Array
from bali.predictive.mixtures import RegressionPredictive
from bali.training.calibration import Part

#: Whole numbers from 0 or 1 on are counts if none is larger, and their mean is above their median, as that of counts is.
LARGEST_COUNT = 10_000
#: Fewer different ones may be grades or labels.
_LEAST_VALUES = 10


def look_like_counts(numbers: Array) -> bool:
    is_whole, least, most = (numbers == np.round(numbers)).all(), numbers.min(), numbers.max()
    return bool(is_whole and least in (0.0, 1.0) and most <= LARGEST_COUNT and np.median(numbers) < numbers.mean())


def may_be_counts(values: Array) -> bool:
    """Whether a model of counts is worth trying for values (n, D)."""
    return values.shape[1] == 1 and len(np.unique(values)) >= _LEAST_VALUES and look_like_counts(values)


def are_likelier(as_counts: Sequence[Part], as_numbers: Sequence[Part]) -> bool:
    """Whether the same held-out rows are more likely as counts. A density has the probability of all that is rounded to an
    observation; without that, it could be as high as one likes at whole numbers."""
    of_counts, of_numbers = 0.0, 0.0
    for counts, numbers in zip(as_counts, as_numbers, strict=True):
        assert isinstance(numbers.predictive, RegressionPredictive)
        y = counts.y.double()
        above, below = (numbers.predictive.cdf(y + half).double() for half in (0.5, -0.5))
        probability = (above - below).clamp_min(torch.finfo(torch.float64).tiny)
        of_numbers += float((probability.log()[:, 0] * numbers.weight).sum())
        of_counts += float((counts.predictive.log_prob(y) * counts.weight).sum())
    return of_counts > of_numbers
