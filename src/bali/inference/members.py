"""Some of the stacked members of a state, and several stacks as one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from bali.conjugate.mniw import MNIW
from bali.conjugate.symmetric import Symmetric
from bali.inference.state import LayerState, State


def take_members(state: State, n_members: int, index: Sequence[int]) -> State:
    """The state of some of the members; the generator is shared."""
    taken = list(index)

    def of(tensor: Tensor, own_dims: int) -> Tensor:
        # Members may share one tensor (the Gram matrix of shared inputs); then it has no dimension for them.
        return (tensor.expand(n_members, *tensor.shape) if tensor.dim() == own_dims else tensor)[taken]

    def of_precision(precision: Symmetric) -> Symmetric:
        return replace(precision, values=of(precision.values, precision.own_dims))

    def of_layer(layer: LayerState) -> LayerState:
        prior, posterior, fixed = layer.prior, layer.posterior, layer.fixed_precision
        gradient, velocity = layer.mean_squared_gradient, layer.velocity
        if prior.mean.dim() > 2:
            prior = replace(prior, mean=of(prior.mean, 2), precision=of_precision(prior.precision))
        if posterior is not None:
            posterior = replace(
                posterior,
                mean=of(posterior.mean, 2),
                precision=of_precision(posterior.precision),
                scale=of(posterior.scale, 2),
            )
        return LayerState(
            prior,
            of(layer.weights, 2),
            posterior,
            None if gradient is None else of(gradient, 1),
            None if velocity is None else of(velocity, 2),
            None if fixed is None else of_precision(fixed),
        )

    return replace(state, layers={name: of_layer(layer) for name, layer in state.layers.items()})


def concatenate(states: Sequence[State]) -> State:
    """Several stacks of members as one; counters and generator are those of the first."""

    def joined(tensors: Sequence[Tensor | None]) -> Tensor | None:
        given = [t for t in tensors if t is not None]
        return torch.cat(given) if given else None

    def of_mniw(parts: Sequence[MNIW | None]) -> MNIW | None:
        given = [part for part in parts if part is not None]
        if not given or given[0].mean.dim() == 2:
            return given[0] if given else None
        scale = torch.cat([part.scale for part in given]) if given[0].scale.dim() > 2 else given[0].scale
        precision = replace(given[0].precision, values=torch.cat([part.precision.values for part in given]))
        return replace(given[0], mean=torch.cat([part.mean for part in given]), precision=precision, scale=scale)

    def of_layer(layers: Sequence[LayerState]) -> LayerState:
        velocities: list[Tensor | None] = [layer.velocity for layer in layers]
        if any(v is not None for v in velocities):  # where a mean had no momentum, it does not move
            velocities = [torch.zeros_like(la.reference) if la.velocity is None else la.velocity for la in layers]
        first, prior = layers[0], of_mniw([layer.prior for layer in layers])
        assert prior is not None
        posterior = of_mniw([layer.posterior for layer in layers])
        fixed = posterior.precision if first.fixed_precision is not None and posterior is not None else first.fixed_precision
        return LayerState(
            prior,
            torch.cat([layer.weights for layer in layers]),
            posterior,
            joined([layer.mean_squared_gradient for layer in layers]),
            joined(velocities),
            fixed,
        )

    return replace(states[0], layers={name: of_layer([s.layers[name] for s in states]) for name in states[0].layers})
