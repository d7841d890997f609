"""Predictions with a weaker prior than training had."""

from __future__ import annotations

import copy
from dataclasses import replace

from bali.inference import LayerwiseInference


def widened(inference: LayerwiseInference, factor: float) -> LayerwiseInference:
    """The inference with `factor` times the prior variance of its first layer, to predict from; means stay as they are.

    In training, a prior is also the damping of a solve, and has to be strong where many columns hardly vary. That is no
    reason to be sure of weights of which no row has told anything.
    """
    name, state = next(iter(inference.states.items()))
    if factor == 1.0 or state.posterior is None:
        return inference
    precision = state.posterior.precision - (1.0 - 1.0 / factor) * state.prior.precision
    wide = copy.copy(inference)
    wide.states = inference.states | {name: replace(state, posterior=state.posterior.with_precision(precision))}
    return wide
