"""Which rows to label next: those whose labels tell most, together.

A model is anything with joint predictions, the same weight samples for all rows: what `bali.fit` returns, one of the
estimators, or a `Conditioned` regression. Rows are chosen greedily, each given those before it, so that a batch
does not ask the same thing twice. I(·;·) is mutual information.

    variance    Var(f(x)) given the labels chosen before, of numbers
    bald        I(y; weights) of each row by itself
    batchbald   I(y; weights) given the labels chosen before
    epig        I(y; y*) given the labels chosen before, on average over target rows x*

For numbers, outputs are jointly Gaussian with the covariance of the weight samples, and all of these are closed forms.
For classes, labels chosen before are averaged over draws from the model.
"""

from __future__ import annotations

from typing import Any, Literal, Protocol, get_args, runtime_checkable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from bali.predictive.mixtures import ClassPredictive, Predictive, RegressionPredictive
from bali.predictive.two_scales import TwoScalePredictive
from bali.training.information import ClassInformation, GaussianInformation

Method = Literal["epig", "bald", "batchbald", "variance"]
#: Target rows that are drawn from the pool where none are given.
_TARGETS = 100


@runtime_checkable
class PredictsRows(Protocol):
    """The estimators."""

    def pred_dist(self, X: Any) -> Predictive: ...


class PredictsExamples(Protocol):
    """Fitted modules."""

    def predict(self, x: Any, n_samples: int = ...) -> Predictive: ...


class Information(Protocol):
    """How much the label of each row of the pool tells, given those that were chosen."""

    def variance(self) -> Tensor: ...

    def bald(self) -> Tensor: ...

    def epig(self) -> Tensor: ...

    def choose(self, row: int) -> None:
        """From now on the label of this row is taken as known."""


def query(
    model: PredictsRows | PredictsExamples,
    pool: Any,
    n: int = 1,
    method: Method = "epig",
    *,
    target: Any = None,
    n_samples: int = 256,
    seed: int = 0,
) -> NDArray[np.int64]:
    """The positions of n rows of the pool to label next, the most telling first.

    Parameters
    ----------
    model
        A fitted module or an estimator, or whatever else has `pred_dist`, or `predict`.
    pool
        Rows without labels, as the model takes them: a tensor, an array, a frame.
    method
        What a label should tell most about: the predictions at `target` ("epig"), the weights ("batchbald"; "bald" without
        regard to the other rows of the batch), the outputs of the row itself ("variance", for numbers).
    target
        Rows that matter, for "epig". By default some of the pool.
    n_samples
        Weight samples, for fitted modules; estimators have their own number.
    """
    if method not in get_args(Method):
        raise ValueError(f"method must be one of {', '.join(get_args(Method))}; got {method!r}")
    predictive = _predicted(model, pool, n_samples)
    of_target = _predicted(model, target, n_samples) if target is not None and method == "epig" else None
    return query_predictive(predictive, n, method, target=of_target, seed=seed)


def query_predictive(
    predictive: Predictive, n: int = 1, method: Method = "epig", *, target: Predictive | None = None, seed: int = 0
) -> NDArray[np.int64]:
    """`query` of predictions that have been made already, those of the target rows with the same weight samples."""
    n_rows = predictive.n_rows
    if not 1 <= n <= n_rows:
        raise ValueError(f"n must be between 1 and the {n_rows} rows of the pool, got {n}")
    generator = torch.Generator().manual_seed(seed)
    places = None
    if target is None:
        places = torch.randperm(n_rows, generator=generator)[:_TARGETS]
        target = predictive.rows(places)
    with torch.no_grad():
        information = _information(predictive, target, generator, places)
        if method == "bald":
            return np.asarray(information.bald().topk(n).indices.cpu().numpy(), dtype=np.int64)
        score = information.bald if method == "batchbald" else information.epig if method == "epig" else information.variance
        chosen: list[int] = []
        for _ in range(n):
            values = score()
            values[chosen] = -torch.inf
            chosen.append(int(values.argmax()))
            information.choose(chosen[-1])
    return np.asarray(chosen, dtype=np.int64)


def _predicted(model: PredictsRows | PredictsExamples, x: Any, n_samples: int) -> Predictive:
    return model.pred_dist(x) if isinstance(model, PredictsRows) else model.predict(x, n_samples)


def _information(
    predictive: Predictive, target: Predictive, generator: torch.Generator, places: Tensor | None
) -> Information:
    if isinstance(predictive, TwoScalePredictive) and isinstance(target, TwoScalePredictive):
        predictive, target = predictive.as_gaussians(), target.as_gaussians()
    if isinstance(predictive, RegressionPredictive) and isinstance(target, RegressionPredictive):
        return GaussianInformation.of(predictive, target, places)
    if isinstance(predictive, ClassPredictive) and isinstance(target, ClassPredictive):
        return ClassInformation(
            predictive.component_probabilities.double(), target.component_probabilities.double(), generator, places
        )
    raise TypeError(
        f"rows can be chosen for classes and for numbers with Gaussian noise, not for {type(predictive).__name__}"
    )
