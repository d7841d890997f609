"""What only a forward pass tells: which layer is the output of a regression, and which one the data enter."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

import torch
from torch import Tensor

from bali.conjugate.moments import gram, with_ones
from bali.inference.recording import Call, version_of
from bali.inference.settings import Setup
from bali.inference.state import State
from bali.layers.layer import Layer


def first_layers(setup: Setup, state: State, x: Tensor, output: Tensor, calls: Mapping[str, list[Call]]) -> State:
    """The state for the first step: a regression's output layer has its own noise floor, exact inputs a known precision."""
    settings, network, found = setup.settings, setup.network, dict(state.layers)
    output_layer = output_layer_of(output, network.layers, calls) if setup.likelihood.has_true_targets else None
    if setup.likelihood.has_true_targets and output_layer is None:
        raise ValueError("with a Gaussian likelihood the module must end in a linear layer that is trained")
    if output_layer is not None:
        own = settings.prior(network.layers[output_layer], is_output=True, repairs=setup.repairs)
        known = found[output_layer]
        found[output_layer] = replace(known, prior=replace(own, mean=known.prior.mean))
    if settings.input_moments is not None:
        name = input_layer(x, network.layers, calls)
        precision = found[name].prior.precision.plus(settings.exact_xx(network.layers[name]))
        found[name] = replace(found[name], fixed_precision=precision)
    return replace(state, layers=found, output_layer=output_layer)


def output_layer_of(output: Tensor, layers: Mapping[str, Layer], calls: Mapping[str, list[Call]]) -> str | None:
    """The layer whose outputs are the module's, if there is one."""
    for name, layer_calls in calls.items():
        if layers[name].takes_rows and len(layer_calls) == 1 and _is_of(output, layer_calls[0]):
            return name
    return None


def _is_of(output: Tensor, call: Call) -> bool:
    """The module returned the outputs of this call, perhaps in another shape, and not merely equal numbers."""
    same = output.data_ptr() == call.passed_on.data_ptr() and output.numel() == call.passed_on.numel()
    ordered = output.is_contiguous() and call.passed_on.is_contiguous()
    return same and ordered and call.versions[2] == version_of(call.passed_on)


def input_layer(x: Tensor, layers: Mapping[str, Layer], calls: Mapping[str, list[Call]]) -> str:
    """The layer that the data enter as they are."""
    for name, layer_calls in calls.items():
        first = layer_calls[0].x
        is_input = first.data_ptr() == x.data_ptr() and first.shape == x.shape
        if layers[name].takes_rows and len(layer_calls) == 1 and is_input:
            return name
    raise ValueError("input_moments need a linear layer that is called once, with the module's input as it is")


def input_moments(x: Tensor | Iterable[Tensor]) -> Tensor:
    """The mean of (x, 1)(x, 1)ᵀ over all rows, (D + 1, D + 1) in float64, for `LayerwiseInference.use_input_moments`.

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
