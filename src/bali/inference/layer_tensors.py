"""A layer's state as plain tensors, and back: what files and messages between processes hold of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from torch import Tensor

from bali.conjugate.mniw import MNIW
from bali.conjugate.symmetric import Symmetric
from bali.inference.state import LayerState


def tensors_of(layer: LayerState) -> dict[str, Tensor]:
    """By name; the prior's mean only where it is not zero."""
    found = {"weights": layer.weights, "mean_squared_gradient": layer.mean_squared_gradient, "velocity": layer.velocity}
    if layer.precision is not None:
        found["precision"] = layer.precision.values
    if layer.posterior is not None:
        found |= {"mean": layer.posterior.mean, "scale": layer.posterior.scale}
    if not layer.prior.mean_is_zero:
        found["prior_mean"] = layer.prior.mean
    return {name: value for name, value in found.items() if value is not None}


def layer_from_tensors(
    prior: MNIW, tensors: Mapping[str, Tensor], precision: Symmetric, n: float, *, is_fixed: bool
) -> LayerState:
    """A layer's state from its tensors, the prior that its settings mean, and the precision that they hold.

    `n` is N_eff, which the degrees of freedom grew by.
    """
    if "prior_mean" in tensors:
        prior = replace(prior, mean=tensors["prior_mean"])
    posterior = None
    if "mean" in tensors:
        mean, scale = tensors["mean"], tensors["scale"]
        posterior = replace(prior, mean=mean, precision=precision, scale=scale, dof=prior.dof + n)
    gradient, velocity = tensors.get("mean_squared_gradient"), tensors.get("velocity")
    return LayerState(prior, tensors["weights"], posterior, gradient, velocity, precision if is_fixed else None)
