"""Bayesian neural networks that train by exact layerwise inference."""

from importlib.metadata import version

from bali import distributed, likelihoods
from bali.averaging import AveragedMeans
from bali.estimator_files import load
from bali.estimators import BALIClassifier, BALIRegressor
from bali.files import ModelFileError
from bali.first_pass import input_moments
from bali.health import HealthWarning
from bali.inference import LayerwiseInference
from bali.layer import UnsupportedLayerError
from bali.layers import StackedLinear, stack
from bali.linalg import NumericalError, NumericalRepairWarning
from bali.lora import LowRankAdapted, lora
from bali.mniw import MNIW
from bali.moments import Moments
from bali.predictive import Predictive

__version__ = version("bali-torch")

__all__ = [
    "MNIW",
    "AveragedMeans",
    "BALIClassifier",
    "BALIRegressor",
    "HealthWarning",
    "LayerwiseInference",
    "LowRankAdapted",
    "ModelFileError",
    "Moments",
    "NumericalError",
    "NumericalRepairWarning",
    "Predictive",
    "StackedLinear",
    "UnsupportedLayerError",
    "distributed",
    "input_moments",
    "likelihoods",
    "load",
    "lora",
    "stack",
]
