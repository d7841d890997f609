"""Some of the stacked members of an inference, each as it stands."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from typing import Any

from torch import Tensor, nn

import bali
from bali.conjugate.symmetric import Symmetric
from bali.inference.network import Network
from bali.inference.settings import Settings
from bali.inference.state import LayerState, State
from bali.layers.modules import StackedLinear


def take_members(inference: bali.LayerwiseInference, index: Sequence[int]) -> bali.LayerwiseInference:
    """An inference over some of the stacked members only."""
    setup, n_members = inference.setup, inference.setup.network.members
    if n_members is None:
        raise ValueError("only stacked networks have members; see bali.stack")
    taken = bali.LayerwiseInference.__new__(bali.LayerwiseInference)
    network = Network(take_stacked(setup.network.module, index))
    taken._begin(replace(setup, network=network, settings=_settings(setup.settings, index)), inference.state.generator)
    taken.state = _state(inference.state, n_members, index)
    taken.assign()
    return taken


def _state(state: State, n_members: int, index: Sequence[int]) -> State:
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


def _settings(whole: Settings, index: Sequence[int]) -> Settings:
    """The settings of some of the stacked members."""

    def take(value: Any) -> Any:
        if isinstance(value, Mapping):
            return {name: take(v) for name, v in value.items()}
        return value[list(index)] if isinstance(value, Tensor) else value

    shared = {"input_moments"} if whole.input_moments is not None and whole.input_moments.dim() == 2 else set()
    return replace(whole, **{f.name: take(getattr(whole, f.name)) for f in fields(whole) if f.name not in shared})


def take_stacked(module: nn.Module, index: Sequence[int]) -> nn.Module:
    """A copy of a stacked module with some of its members."""
    taken = copy.deepcopy(module)
    for child in taken.modules():
        if isinstance(child, StackedLinear):
            child.members = len(index)
            for name, parameter in list(child.named_parameters(recurse=False)):
                chosen = parameter.detach()[list(index)].clone()
                setattr(child, name, nn.Parameter(chosen, requires_grad=parameter.requires_grad))
    return taken
