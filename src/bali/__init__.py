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

#: The public names, by the module or the package that has them.
_PUBLIC = {
    "bali.conjugate.linalg": ("NumericalError", "NumericalRepairWarning"),
    "bali.conjugate.mniw": ("MNIW",),
    "bali.conjugate.moments": ("Moments",),
    "bali.estimators.classifier": ("BALIClassifier",),
    "bali.estimators.loading": ("load",),
    "bali.estimators.regressor": ("BALIRegressor",),
    "bali.files": ("ModelFileError",),
    "bali.inference": ("distributed",),
    "bali.inference.first_pass": ("input_moments",),
    "bali.inference.health": ("HealthWarning",),
    "bali.inference.layerwise": ("LayerwiseInference",),
    "bali.layers.kinds": ("stack",),
    "bali.layers.layer": ("UnsupportedLayerError",),
    "bali.layers.modules": ("LowRankAdapted", "StackedLinear", "lora"),
    "bali.predictive": ("likelihoods", "metrics", "plots"),
    "bali.predictive.mixtures": ("Predictive",),
    "bali.training": ("active",),
    "bali.training.averaging": ("AveragedMeans",),
    "bali.training.botorch_model": ("BoTorchModel",),
    "bali.training.drift": ("DriftWatch",),
    "bali.training.fit_network": ("fit",),
    "bali.training.surrogate": ("surrogate",),
}
_PLACES = {name: place for place, names in _PUBLIC.items() for name in names}

__all__ = sorted(_PLACES)


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from importlib.metadata import version

        return version("bali-torch")
    if name not in _PLACES:
        raise AttributeError(f"module 'bali' has no attribute {name!r}")
    module = importlib.import_module(_PLACES[name])
    found = globals()[name] = getattr(module, name, None) or importlib.import_module(f"{module.__name__}.{name}")
    return found


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
