"""Predictions with a weaker prior than training had."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from bali.conjugate.symmetric import Diagonal
from bali.inference.prediction import NetworkPosterior
from bali.inference.state import State


def widened(posterior: NetworkPosterior, state: State, factors: Mapping[str, float]) -> NetworkPosterior:
    """The posterior with so many times the prior variance of each layer that is named, to predict from; means stay.

    In training, a prior is also the damping of a solve, and has to be strong where inputs hardly vary. That is no reason to
    be sure of weights of which no row has told anything.
    """
    found = dict(posterior.posteriors)
    for name, factor in factors.items():
        prior = state.layers[name].prior.precision
        less = Diagonal(-(1.0 - 1.0 / factor) * prior.diagonal())
        found[name] = found[name].with_precision(less.plus(found[name].precision))
    return replace(posterior, posteriors=found)
