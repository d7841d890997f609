"""What the network's output says about the observed targets: the likelihoods that are built in, and the doors to others.

See docs/likelihoods.md.
"""

from __future__ import annotations

import torch

from bali.predictive.categorical import Categorical
from bali.predictive.durations import LogNormalDuration, Weibull, durations
from bali.predictive.gaussian import Gaussian
from bali.predictive.likelihood import FamilyLikelihood, Likelihood
from bali.predictive.number_likelihoods import (
    Bernoulli,
    Beta,
    Gamma,
    GaussianByRow,
    LogNormal,
    MixtureOfGaussians,
    NegativeBinomial,
    Ordinal,
    Poisson,
    StudentT,
    ZeroInflatedNegativeBinomial,
)
from bali.predictive.own_likelihoods import from_distribution, from_log_density
from bali.predictive.predictive_base import UndefinedError

__all__ = [
    "Bernoulli",
    "Beta",
    "Categorical",
    "FamilyLikelihood",
    "Gamma",
    "Gaussian",
    "GaussianByRow",
    "Likelihood",
    "LogNormal",
    "LogNormalDuration",
    "MixtureOfGaussians",
    "NegativeBinomial",
    "Ordinal",
    "Poisson",
    "StudentT",
    "UndefinedError",
    "Weibull",
    "ZeroInflatedNegativeBinomial",
    "as_likelihood",
    "durations",
    "from_distribution",
    "from_log_density",
]


def as_likelihood(given: Likelihood | type[Likelihood] | torch.nn.Module) -> Likelihood:
    """A likelihood, the one that a class makes without arguments, or the one whose negative logarithm a torch loss is."""
    if isinstance(given, Likelihood):
        return given
    if isinstance(given, type) and issubclass(given, Likelihood):
        return given()
    for loss, (likelihood, settings) in _LOSSES.items():
        if type(given) is loss:
            for name, meaning in settings.items():
                if getattr(given, name) != meaning:
                    raise ValueError(f"{loss.__name__} with {name}={getattr(given, name)!r} has no likelihood here")
            return likelihood()
    known = ", ".join(loss.__name__ for loss in _LOSSES)
    raise TypeError(
        f"{given!r} is no likelihood. Give one of bali.likelihoods, bali.likelihoods.from_distribution(...) or "
        f"from_log_density(...), or one of torch's losses {known}."
    )


#: Losses of torch, and what their settings must be.
_LOSSES: dict[type[torch.nn.Module], tuple[type[Likelihood], dict[str, object]]] = {
    torch.nn.CrossEntropyLoss: (Categorical, {"weight": None, "label_smoothing": 0.0}),
    torch.nn.NLLLoss: (Categorical, {"weight": None}),  # of log-probabilities, which are logits, too
    torch.nn.MSELoss: (Gaussian, {}),
    torch.nn.GaussianNLLLoss: (GaussianByRow, {}),
    torch.nn.BCEWithLogitsLoss: (Bernoulli, {"weight": None, "pos_weight": None}),
    torch.nn.PoissonNLLLoss: (Poisson, {"log_input": True}),
}
