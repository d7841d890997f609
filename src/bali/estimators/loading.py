"""A model file as what wrote it: an estimator, or a fitted network."""

from __future__ import annotations

import os
from typing import Any, overload

from torch import nn

from bali.estimators.base import BALIEstimator
from bali.estimators.classifier import BALIClassifier
from bali.estimators.estimator_files import load_kinds
from bali.estimators.regressor import BALIRegressor
from bali.files import DAMAGED, refusing
from bali.predictive.likelihoods import Likelihood
from bali.training import fitted_files
from bali.training.fitted import Fitted


@overload
def load(path: str | os.PathLike[str]) -> BALIEstimator: ...


@overload
def load(path: str | os.PathLike[str], module: nn.Module, likelihood: Likelihood | None = None) -> Fitted: ...


def load(
    path: str | os.PathLike[str], module: nn.Module | None = None, likelihood: Likelihood | None = None
) -> BALIEstimator | Fitted:
    """What `save` wrote: an estimator, or with a module of the same architecture, the posterior that `bali.fit` found.

    A likelihood of the user's own is not in the file and has to be given. Reading a file executes nothing.
    """
    return load_with_extra(path)[0] if module is None else fitted_files.load(path, module, likelihood)


def load_with_extra(path: str | os.PathLike[str]) -> tuple[BALIEstimator, dict[str, Any]]:
    """A BALI estimator and what was written beside it."""
    kinds: list[type[BALIEstimator]] = [BALIRegressor, BALIClassifier]
    estimator, extra = load_kinds(path, kinds)
    with refusing(path, *DAMAGED):
        estimator.check_prediction()
    return estimator, extra
