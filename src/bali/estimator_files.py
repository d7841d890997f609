"""Fitted estimators as files: parameters and small attributes in the header, arrays as tensors."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from bali import files

if TYPE_CHECKING:
    from bali.estimators import BALIEstimator
    from bali.estimators.distributional import DistributionalEstimator

KIND = "estimator"
_ARRAYS = ("input_scaling_", "target_mean_", "target_scale_")
_PLAIN = (
    "n_features_in_", "layer_sizes_", "n_train_", "prior_variance_", "linear_", "temperature_", "seed_", "dtype_",
    "n_outputs_", "noise_scale_", "noise_dof_", "prior_widening_",
    "n_members_", "_y_is_1d", "n_iter_", "best_iter_", "loss_curve_", "validation_steps_", "validation_scores_",
    "settings_", "noise_factor_", "validation_score_",
)  # fmt: skip


def save(estimator: DistributionalEstimator, path: str | os.PathLike[str], extra: dict[str, Any] | None = None) -> None:
    """Write a fitted estimator, with `extra` (plain JSON) beside it in the header."""
    parameters = estimator.get_params()
    if isinstance(parameters["random_state"], np.random.RandomState):
        parameters["random_state"] = None  # the seed it gave is kept
    for name, value in parameters.items():
        if isinstance(value, Sequence) and not isinstance(value, str):
            parameters[name] = list(value)
    fitted: dict[str, Any] = {name: getattr(estimator, name) for name in _PLAIN if hasattr(estimator, name)}
    if hasattr(estimator, "feature_names_in_"):
        fitted["feature_names_in_"] = list(estimator.feature_names_in_)
    if hasattr(estimator, "classes_"):
        fitted["classes_"] = {"values": estimator.classes_.tolist(), "dtype": estimator.classes_.dtype.str}
    state = estimator.fitted_state()
    tensors = {f"inference/{name}": tensor for name, tensor in state["tensors"].items()}
    tensors |= {name: torch.from_numpy(getattr(estimator, name)) for name in _ARRAYS if hasattr(estimator, name)}
    meta = {
        "class": type(estimator).__name__,
        "parameters": parameters,
        "fitted": fitted,
        "inference": state["meta"],
        "extra": extra or {},
    }
    files.write(path, KIND, meta, tensors)


def load(path: str | os.PathLike[str]) -> DistributionalEstimator:
    """The estimator that `save` wrote."""
    from bali import baselines, estimators

    kinds: list[type[DistributionalEstimator]] = [
        estimators.BALIRegressor, estimators.BALIClassifier, baselines.BaselineRegressor, baselines.BaselineClassifier,
    ]  # fmt: skip
    return _load(path, kinds)[0]


def load_with_extra(path: str | os.PathLike[str]) -> tuple[BALIEstimator, dict[str, Any]]:
    """A BALI estimator and what was written beside it."""
    from bali import estimators

    estimator, extra = _load(path, [estimators.BALIRegressor, estimators.BALIClassifier])
    assert isinstance(estimator, estimators.BALIEstimator)
    return estimator, extra


def _load(
    path: str | os.PathLike[str], kinds: Sequence[type[DistributionalEstimator]]
) -> tuple[DistributionalEstimator, dict[str, Any]]:
    meta, tensors = files.read(path, KIND)
    classes = {kind.__name__: kind for kind in kinds}
    if meta["class"] not in classes:
        raise files.ModelFileError(
            f"{os.fspath(path)!r} holds a model of the kind {meta['class']!r}; expected one of {', '.join(classes)}"
        )
    estimator = classes[meta["class"]](**meta["parameters"])
    fitted = dict(meta["fitted"])
    if "classes_" in fitted:
        fitted["classes_"] = np.array(fitted["classes_"]["values"], dtype=np.dtype(fitted["classes_"]["dtype"]))
    if "feature_names_in_" in fitted:
        fitted["feature_names_in_"] = np.array(fitted["feature_names_in_"], dtype=object)
    for name, value in fitted.items():
        setattr(estimator, name, value)
    for name in _ARRAYS:
        if name in tensors:
            setattr(estimator, name, tensors[name].numpy())
    prefix = "inference/"
    own = {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}
    estimator.restore_fitted_state({"meta": meta["inference"], "tensors": own})
    return estimator, meta["extra"]
