"""Models that are tried beside that of numbers as they are: of logarithms, and of counts. Held-out rows tell what counts.

Positive targets with a long tail may be nearer to what networks can say in logarithms, which then are mixed in or alone.
Whole numbers may be counts, whose noise grows with their mean.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import torch
from sklearn.base import clone
from torch import Tensor

from bali.estimators.distributional import Array
from bali.estimators.encodings import Encoding
from bali.predictive.mixtures import Predictive, RegressionPredictive
from bali.predictive.two_scales import TwoScalePredictive, on_two_scales
from bali.training.calibration import Part

#: Nearly symmetric targets gain nothing from a bend.
_LEAST_SKEWNESS = 0.5
#: Means of logarithms are at most so many standard deviations of all targets' logarithms away from their mean: exp of what
#: a network says far from all rows would be beyond all numbers.
_FARTHEST = 5.0
#: Whole numbers from 0 or 1 on are counts if none is larger, and their mean is above their median, as that of counts is.
LARGEST_COUNT = 10_000
#: Fewer different ones may be grades or labels.
_LEAST_VALUES = 10
#: What the model of y and that of its logarithms have in common.
_SHARED = ("n_features_in_", "feature_names_in_", "columns_", "n_outputs_", "_y_is_1d", "input_scaling_")


# --- what one model tells the other -----------------------------------------------------------------------------------


class TrainedRows(NamedTuple):
    """What a posterior was trained on."""

    encoded: list[Tensor]  # rows as each of its stacks sees them, and perhaps its noise
    targets: Tensor
    weight: Tensor
    held_out: Tensor  # (G, n), shares of the rows' weights that its members hold out
    is_cut_off: bool  # by Ctrl-C
    groups: Tensor  # these and more, which a training that comes after may hold out


class KnownWays(NamedTuple):
    """Of a model beside another one: ways of seeing rows that were found before, and the targets they may be learnt from."""

    encodings: list[Encoding]
    targets: Tensor


# --- logarithms -------------------------------------------------------------------------------------------------------


def is_skewed(values: Array, weight: Array) -> bool:
    """Whether one column of positive numbers is nearer to symmetry in logarithms."""
    if values.shape[1] != 1 or len(values) < 3 or values.min() <= 0:
        return False
    skewness = [_skewness(column, weight) for column in (values[:, 0], np.log(values[:, 0]))]
    return bool(skewness[0] > max(_LEAST_SKEWNESS, abs(skewness[1])))


def _skewness(values: Array, weight: Array) -> float:
    centred = values - np.average(values, weights=weight)
    variance = np.average(centred**2, weights=weight)
    return float(np.average((centred / np.sqrt(variance)) ** 3, weights=weight)) if variance > 0 else 0.0


@dataclass(frozen=True)
class Logarithms:
    """A model of log y beside that of y."""

    model: Any  # a BALIRegressor
    alone: bool  # whether predictions are of this model only
    scores: tuple[float, float]  # log-likelihood of held-out rows by the model of y, and by what is predicted from

    @property
    def summary(self) -> str:
        kept = "logarithms" if self.alone else "as they are and their logarithms"
        return f"{kept} (held-out log-likelihood {self.scores[1]:.3f}, as they are {self.scores[0]:.3f})"

    def mixed(self, of_y: RegressionPredictive, of_log: RegressionPredictive) -> TwoScalePredictive:
        """Both in the units of y and of log y."""
        mean, scale = (float(a[0]) for a in (self.model.target_mean_, self.model.target_scale_))
        reach = (mean - _FARTHEST * scale, mean + _FARTHEST * scale)
        parts = [(replace(of_log, means=of_log.means.clamp(*reach)), True)]
        return on_two_scales(parts if self.alone else [(of_y, False), *parts], scale)

    def to_plain(self) -> tuple[dict[str, Any], dict[str, Tensor]]:
        state = self.model.fitted_state()
        meta = {name: state["meta"][name] for name in ("recipe", "posterior")}
        own = {name: torch.from_numpy(getattr(self.model, name)) for name in ("target_mean_", "target_scale_")}
        return meta | {"alone": self.alone, "scores": list(self.scores)}, state["tensors"] | own

    @classmethod
    def from_plain(cls, owner: Any, meta: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> Logarithms:
        model = beside(owner)
        for name in ("target_mean_", "target_scale_"):
            setattr(model, name, tensors[name].numpy())
        plain = {"recipe": meta["recipe"], "posterior": meta["posterior"], "columns": owner.columns_.to_json()}
        model.restore_fitted_state({"meta": plain, "tensors": tensors})
        return cls(model, meta["alone"], tuple(meta["scores"]))


def beside(owner: Any, likelihood: str = "gaussian") -> Any:
    """A BALIRegressor with the same parameters and inputs as this one, and this likelihood."""
    model = clone(owner).set_params(likelihood=likelihood)
    for name in _SHARED:
        if hasattr(owner, name):
            setattr(model, name, getattr(owner, name))
    return model


def chosen(model: Any, of_y: Sequence[Part], of_log: Sequence[Part]) -> Logarithms | None:
    """By predictions of the same held-out rows in the units of y and of log y; None where y as it is does best.

    Logarithms make relative errors small, and the log-likelihood of small values large, also where the means of large values
    are then further off. So they have to have the better log-likelihood, and no larger squared errors.
    """
    as_it_is = _scores([part.predictive for part in of_y], of_y)
    best, found = as_it_is[0], None
    for alone in (False, True):
        option = Logarithms(model, alone, (as_it_is[0], as_it_is[0]))
        pairs = zip(of_y, of_log, strict=True)
        log_likelihood, squared_error = _scores([option.mixed(a.predictive, b.predictive) for a, b in pairs], of_y)  # type: ignore[arg-type]
        if log_likelihood > best and squared_error <= as_it_is[1]:
            best, found = log_likelihood, replace(option, scores=(as_it_is[0], log_likelihood))
    return found


def _scores(predictives: Sequence[Predictive], observed: Sequence[Part]) -> tuple[float, float]:
    """Mean log-likelihood, and squared error of the means."""
    total = sum(float(part.weight.sum()) for part in observed)
    log_likelihood, squared_error = 0.0, 0.0
    for predictive, (_, y, weight) in zip(predictives, observed, strict=True):
        log_likelihood += float((predictive.log_prob(y) * weight).sum())
        squared_error += float(((predictive.mean - y)[:, 0].square() * weight).sum())
    return log_likelihood / total, squared_error / total


# --- counts -----------------------------------------------------------------------------------------------------------


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
