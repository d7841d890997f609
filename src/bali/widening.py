"""Predictions with a weaker prior than training had."""

from __future__ import annotations

import copy
from dataclasses import replace

from bali.inference import LayerwiseInference


def widened(inference: LayerwiseInference, factor: float, *, first_only: bool) -> LayerwiseInference:
    """The inference with `factor` times the prior variance, of its first layer or of all, to predict from; means stay.

    In training, a prior is also the damping of a solve, and has to be strong where inputs hardly vary. That is no reason to
    be sure of weights of which no row has told anything.
    """
    if factor == 1.0:
        return inference
    wide = copy.copy(inference)
    wide.states = dict(inference.states)
    for name, posterior in list(inference.posteriors.items())[: 1 if first_only else None]:
        state = inference.states[name]
        precision = posterior.precision - (1.0 - 1.0 / factor) * state.prior.precision
        wide.states[name] = replace(state, posterior=posterior.with_precision(precision))
    return wide
