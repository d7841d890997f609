"""What only a forward pass tells: which layer is the output of a regression, and which one the data enter."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

import torch
from torch import Tensor

from bali.gram import gram, with_ones
from bali.layer import Layer
from bali.layer_update import LayerState
from bali.likelihoods import Likelihood
from bali.linalg import Repairs
from bali.network import Call
from bali.settings import Settings


def first_states(
    states: Mapping[str, LayerState],
    settings: Settings,
    likelihood: Likelihood,
    x: Tensor,
    output: Tensor,
    calls: Mapping[str, list[Call]],
    repairs: Repairs,
) -> tuple[dict[str, LayerState], str | None]:
    """The states for the first step, and the name of the output layer of a regression."""
    found, layers = dict(states), {name: state.layer for name, state in states.items()}
    output_layer = _output_layer(output, layers, calls) if likelihood.has_true_targets else None
    if output_layer is not None:
        state = found[output_layer]
        prior = settings.prior(state.layer, is_output=True, device=x.device, repairs=repairs)
        found[output_layer] = replace(state, prior=replace(prior, mean=state.prior.mean))
    if settings.input_moments is not None:
        name = input_layer(x, layers, calls, "input_moments need")
        state = found[name]
        precision = state.prior.precision_plus(settings.exact_xx(state.layer, x.device))
        found[name] = replace(state, precision=precision, xx_is_exact=True)
    return found, output_layer


def _output_layer(output: Tensor, layers: Mapping[str, Layer], calls: Mapping[str, list[Call]]) -> str:
    """The layer whose outputs are the module's."""
    for name, layer_calls in calls.items():
        if layers[name].takes_rows and len(layer_calls) == 1 and layer_calls[0].is_the(output):
            return name
    raise ValueError("with a Gaussian likelihood the module must end in a linear layer that is trained")


def input_layer(x: Tensor, layers: Mapping[str, Layer], calls: Mapping[str, list[Call]], needed_by: str) -> str:
    """The layer that the data enter as they are."""
    for name, layer_calls in calls.items():
        first = layer_calls[0].x
        is_input = first.data_ptr() == x.data_ptr() and first.shape == x.shape
        if layers[name].takes_rows and len(layer_calls) == 1 and is_input:
            return name
    raise ValueError(f"{needed_by} a linear layer that is called once, with the module's input as it is")


def input_moments(x: Tensor | Iterable[Tensor]) -> Tensor:
    """The mean of (x, 1)(x, 1)ᵀ over all rows, (D + 1, D + 1) in float64, for `LayerwiseInference(input_moments=...)`.

    x is (n, D), or an iterable of such batches, so that data need not fit in memory.
    """
    total, n = None, 0
    for rows in [x] if isinstance(x, Tensor) else x:
        if rows.dim() != 2:
            raise ValueError(f"input_moments needs rows (n, D), got shape {tuple(rows.shape)}")
        product = gram(with_ones(rows.double(), None))
        total, n = product if total is None else total + product, n + len(rows)
    if total is None or n == 0:
        raise ValueError("input_moments needs at least one row")
    if not bool(torch.isfinite(total).all()):
        raise ValueError("input_moments found NaN or infinite values in the inputs")
    return total / n
