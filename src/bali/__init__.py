"""Bayesian neural networks that train by exact layerwise inference.

Names are loaded when they are first used, so that `import bali` costs little and `bali --help` needs no torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from bali.conjugate.linalg import NumericalError as NumericalError
    from bali.conjugate.linalg import NumericalRepairWarning as NumericalRepairWarning
    from bali.conjugate.mniw import MNIW as MNIW
    from bali.conjugate.moments import Moments as Moments
    from bali.estimators.classifier import BALIClassifier as BALIClassifier
    from bali.estimators.loading import load as load
    from bali.estimators.regressor import BALIRegressor as BALIRegressor
    from bali.files import ModelFileError as ModelFileError
    from bali.inference import distributed as distributed
    from bali.inference.first_pass import input_moments as input_moments
    from bali.inference.health import HealthWarning as HealthWarning
    from bali.inference.layerwise import LayerwiseInference as LayerwiseInference
    from bali.layers.kinds import stack as stack
    from bali.layers.layer import UnsupportedLayerError as UnsupportedLayerError
    from bali.layers.modules import LowRankAdapted as LowRankAdapted
    from bali.layers.modules import StackedLinear as StackedLinear
    from bali.layers.modules import lora as lora
    from bali.predictive import likelihoods as likelihoods
    from bali.predictive import metrics as metrics
    from bali.predictive import plots as plots
    from bali.predictive.mixtures import Predictive as Predictive
    from bali.training import active as active
    from bali.training.averaging import AveragedMeans as AveragedMeans
    from bali.training.botorch_model import BoTorchModel as BoTorchModel
    from bali.training.drift import DriftWatch as DriftWatch
    from bali.training.fit_network import fit as fit
    from bali.training.surrogate import surrogate as surrogate

#: Where each public name is: a module's, or (None) the module of that name itself.
_PLACES: dict[str, tuple[str, str | None]] = {
    "MNIW": ("bali.conjugate.mniw", "MNIW"),
    "AveragedMeans": ("bali.training.averaging", "AveragedMeans"),
    "BALIClassifier": ("bali.estimators.classifier", "BALIClassifier"),
    "BALIRegressor": ("bali.estimators.regressor", "BALIRegressor"),
    "BoTorchModel": ("bali.training.botorch_model", "BoTorchModel"),
    "DriftWatch": ("bali.training.drift", "DriftWatch"),
    "HealthWarning": ("bali.inference.health", "HealthWarning"),
    "LayerwiseInference": ("bali.inference.layerwise", "LayerwiseInference"),
    "LowRankAdapted": ("bali.layers.modules", "LowRankAdapted"),
    "ModelFileError": ("bali.files", "ModelFileError"),
    "Moments": ("bali.conjugate.moments", "Moments"),
    "NumericalError": ("bali.conjugate.linalg", "NumericalError"),
    "NumericalRepairWarning": ("bali.conjugate.linalg", "NumericalRepairWarning"),
    "Predictive": ("bali.predictive.mixtures", "Predictive"),
    "StackedLinear": ("bali.layers.modules", "StackedLinear"),
    "UnsupportedLayerError": ("bali.layers.layer", "UnsupportedLayerError"),
    "active": ("bali.training.active", None),
    "distributed": ("bali.inference.distributed", None),
    "fit": ("bali.training.fit_network", "fit"),
    "input_moments": ("bali.inference.first_pass", "input_moments"),
    "likelihoods": ("bali.predictive.likelihoods", None),
    "load": ("bali.estimators.loading", "load"),
    "lora": ("bali.layers.modules", "lora"),
    "metrics": ("bali.predictive.metrics", None),
    "plots": ("bali.predictive.plots", None),
    "stack": ("bali.layers.kinds", "stack"),
    "surrogate": ("bali.training.surrogate", "surrogate"),
}

__all__ = sorted(_PLACES)


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from importlib.metadata import version

        return version("bali-torch")
    if name not in _PLACES:
        raise AttributeError(f"module 'bali' has no attribute {name!r}")
    place, own = _PLACES[name]
    module = importlib.import_module(place)
    found = globals()[name] = module if own is None else getattr(module, own)
    return found


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
