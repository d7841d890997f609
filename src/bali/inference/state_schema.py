"""What the state of an inference holds: its header by itself, and its tensors for the inference that takes it over."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from bali.inference.schema import (
    COUNT,
    FLOATS,
    GENERATORS,
    NOTHING,
    POSITIVE,
    RATE,
    Choice,
    Either,
    ListOf,
    MapOf,
    Number,
    Record,
    SchemaError,
    TensorCheck,
    Text,
    Truth,
    check_tensors,
    largest,
)
from bali.inference.setup import Setup
from bali.inference.state import LayerState, State

_FINITE = Number(-1e300, 1e300)
_OPTION = Either(NOTHING, Truth(), _FINITE, Text(r"[\w ]{0,100}"), ListOf(_FINITE))  # of an optimizer
_OPTIONS = MapOf(MapOf(_OPTION))
_HEADER = Record(
    {
        "effective_size": POSITIVE,
        "noise_floor": POSITIVE,
        "output_noise_floor": POSITIVE,
        "prior_about_weights": Truth(),
        "exact_inputs": Truth(),
        "layers": MapOf(ListOf(COUNT, least=2)),
        "prior_precision": MapOf(Either(ListOf(POSITIVE, least=1), POSITIVE)),
        "others": Either(Record({}), Record({"kind": Text(r"\w{1,100}"), "state": _OPTIONS, "param_groups": _OPTIONS})),
        "steps": COUNT,
        "ema_weight": RATE,
        "ema_squares": RATE,
        "output_layer": Either(NOTHING, Text()),
        "input_layer": Either(NOTHING, Text()),
        "repairs": Record({"count": MapOf(COUNT), "largest": MapOf(Number(0.0, 1e300))}),
    }
)


def check_header(meta: Mapping[str, Any]) -> None:
    _HEADER(meta, "header")
    for what in ("output_layer", "input_layer"):
        Choice((None, *meta["layers"]))(meta[what], f"header.{what}")
    if meta["steps"] and not meta["ema_weight"] > 0.0:
        raise SchemaError("header.ema_weight is 0 after the first step")
    for number, group in meta["others"].get("param_groups", {}).items():
        ListOf(COUNT)(group.get("params"), f"header.others.param_groups.{number[:9]}.params")


def check_state(setup: Setup, state: State, meta: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> None:
    """The tensors of a state with the layers and settings of this inference. Prefixes are those that the writers use."""
    checks = {"generator": TensorCheck(torch.uint8, GENERATORS)}
    for name, layer in state.layers.items():
        has_tokens = setup.network.layers[name].has_tokens
        own = _of_layer(layer, has_tokens=has_tokens, is_first=name == meta["input_layer"], started=meta["steps"] > 0)
        checks |= {f"{name}/{key}": check for key, check in own.items()}
    for name, buffer in setup.network.buffers().items():
        checks[f"/buffer/{name}"] = of_buffer(name, buffer)
    for name, parameter in setup.others.parameters.items():
        checks[f"/parameter/{name}"] = TensorCheck(FLOATS, [tuple(parameter.shape)], most=largest(parameter.dtype))
    for name, tensor in tensors.items():
        if name.startswith("/optimizer/"):
            checks[name] = TensorCheck(FLOATS, [tuple(tensor.shape)])
            part, _, rest = name.removeprefix("/optimizer/").partition("/")
            if rest.partition("/")[0] not in meta["others"].get(part, {}):
                raise SchemaError(f"{name[:100]} is of a parameter that the header does not name")
    check_tensors(tensors, checks)
    if f"{meta['output_layer']}/mean_squared_gradient" in tensors:
        raise SchemaError("header.output_layer is a layer whose targets come from gradients")
    known = {str(number) for number in range(len(setup.others.parameters))}
    if not set(meta["others"].get("state", {})) <= known:
        raise SchemaError("header.others.state is of other parameters")
    try:
        setup.others.try_state(meta["others"], tensors)
    except Exception as error:
        raise SchemaError(f"the optimizer cannot take over its state ({type(error).__name__}: {error})") from error
    try:
        state.generator.clone_state().set_state(tensors["generator"].cpu())
    except RuntimeError as error:
        raise SchemaError(f"generator is no state of this kind of random generator ({error})") from error


def of_buffer(name: str, own: Tensor) -> TensorCheck:
    """For a buffer of a module: of its type and shape, finite where it is, and a variance where it is one."""
    least = 0.0 if name.endswith("running_var") else None
    return TensorCheck(own.dtype, [tuple(own.shape)], least=least, finite=bool(own.isfinite().all()))


def _of_layer(layer: LayerState, *, has_tokens: bool, is_first: bool, started: bool) -> dict[str, TensorCheck]:
    wide, maps = layer.prior.mean.dtype, tuple(layer.weights.shape)
    most = largest(layer.weights.dtype)
    *lead, d, o = maps
    inputs = (d,) if has_tokens else (d, d)
    found = {
        "weights": TensorCheck(FLOATS, [maps], most=most),
        "mean": TensorCheck(wide, [maps], most=most, optional=not started),
        # Members may share one matrix, of inputs or of outputs that are the same for all; so do blocks of the same inputs.
        "precision": TensorCheck(
            wide,
            [(*lead, *inputs), inputs, (*lead[:-1], 1, *inputs)],
            positive=slice(None) if has_tokens else None,
            positive_diagonal=not has_tokens,
            optional=not started and not is_first,
        ),
        "scale": TensorCheck(wide, [(*lead, o, o), (o, o)], positive_diagonal=True, optional=not started),
        "mean_squared_gradient": TensorCheck(wide, [(*lead, o), (o,)], least=0.0, optional=True),
        "velocity": TensorCheck(FLOATS, [maps], most=most, optional=True),
        "prior_mean": TensorCheck(wide, [maps], most=most, optional=True),
    }
    if not started:  # nothing but the start, and what is known of the inputs of the first layer
        kept = ("weights", "prior_mean", "precision") if is_first else ("weights", "prior_mean")
        return {name: found[name] for name in kept}
    return found
