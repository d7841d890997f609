"""The state of an inference as plain tensors and numbers, and back: what files and messages between processes hold of it.

What a state must hold is checked before it is used: its header by itself, its tensors for the inference that takes it over.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from bali import files
from bali.conjugate.averages import DebiasedRate
from bali.conjugate.mniw import MNIW
from bali.conjugate.symmetric import Dense, Diagonal, Symmetric
from bali.inference.distributed import Group
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
from bali.inference.settings import Setup
from bali.inference.state import LayerState, State


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


# --- what a state must hold -------------------------------------------------------------------------------------------


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


# --- the state of an inference ----------------------------------------------------------------------------------------


_BUFFER = "/buffer/"  # no layer's name: keys of layers are "name/what"


def state_dict(setup: Setup, state: State) -> dict[str, Any]:
    """{"meta": numbers and names, "tensors": ...}: all that a resumed run needs to go on exactly."""
    tensors: dict[str, Tensor] = {"generator": state.generator.get_state()}
    for name, layer in state.layers.items():
        tensors |= {f"{name}/{key}": value.clone() for key, value in tensors_of(layer).items()}
    other_meta, other_tensors = setup.others.state_dict()
    tensors |= other_tensors
    tensors |= {f"{_BUFFER}{name}": buffer.clone() for name, buffer in setup.network.buffers().items()}
    meta = _fitting(setup, state) | {
        "others": other_meta,
        "steps": state.step,
        "ema_weight": state.rate.weight,
        "ema_squares": state.rate.squares,
        "output_layer": state.output_layer,
        "input_layer": next((name for name, layer in state.layers.items() if layer.fixed_precision is not None), None),
        "repairs": {"count": dict(setup.repairs.count), "largest": dict(setup.repairs.largest)},
    }
    return {"meta": meta, "tensors": tensors}


def _fitting(setup: Setup, state: State) -> dict[str, Any]:
    """What has to be alike in a saved state and the inference that takes it over."""
    return setup.settings.summary() | {
        "layers": {name: list(layer.weights.shape) for name, layer in state.layers.items()},
        "prior_precision": {name: la.prior.precision.diagonal()[..., 0].tolist() for name, la in state.layers.items()},
    }


def save(group: Group | None, path: str | os.PathLike[str], saved: Mapping[str, Any]) -> None:
    with nullcontext() if group is None else group.together():
        if group is None or group.rank == 0:
            files.write(path, "inference state", saved["meta"], saved["tensors"])


def load(group: Group | None, path: str | os.PathLike[str]) -> dict[str, Any]:
    """What is in the file; its header is as it must be."""
    read = functools.partial(_read, path)
    meta, tensors = read() if group is None else group.objects_from_first(read)
    return {"meta": meta, "tensors": tensors}


def _read(path: str | os.PathLike[str]) -> tuple[dict[str, Any], dict[str, Tensor]]:
    meta, tensors = files.read(path, "inference state")
    with files.refusing(path, *files.DAMAGED):
        check_header(meta)
    return meta, tensors


def load_state_dict(setup: Setup, state: State, saved: Mapping[str, Any]) -> State:
    """The saved state, for an inference with the same layers and settings; nothing changes if it does not fit."""
    meta, tensors = saved["meta"], saved["tensors"]
    for key, mine in _fitting(setup, state).items():
        if meta[key] != mine:
            raise ValueError(f"the saved state has {key} {str(meta[key])[:500]}, this inference has {str(mine)[:500]}")
    setup.others.check(meta["others"], tensors)
    buffers = _saved_buffers(setup, tensors)
    check_state(setup, state, meta, tensors)
    layers = {name: _load_layer(setup, name, layer, meta, tensors) for name, layer in state.layers.items()}
    generator = state.generator.clone_state()
    generator.set_state(tensors["generator"].cpu())
    setup.others.load(meta["others"], tensors)
    for buffer, value in buffers:
        buffer.copy_(value)
    setup.repairs.count, setup.repairs.largest = dict(meta["repairs"]["count"]), dict(meta["repairs"]["largest"])
    rate = DebiasedRate(meta["ema_weight"], meta["ema_squares"])
    return State(layers, generator, rate, meta["steps"], meta["output_layer"])


def _saved_buffers(setup: Setup, tensors: Mapping[str, Tensor]) -> list[tuple[Tensor, Tensor]]:
    """The module's buffers, each with its saved value."""
    mine = setup.network.buffers()
    saved = {key.removeprefix(_BUFFER): value for key, value in tensors.items() if key.startswith(_BUFFER)}
    shapes, wanted = ({name: tuple(t.shape) for name, t in sorted(found.items())} for found in (saved, mine))
    if shapes != wanted:
        raise ValueError(f"the saved state has buffers {shapes}, this inference has {wanted}")
    return [(buffer, saved[name]) for name, buffer in mine.items()]


def _load_layer(
    setup: Setup, name: str, layer: LayerState, meta: Mapping[str, Any], tensors: Mapping[str, Tensor]
) -> LayerState:
    device = layer.weights.device
    # Copied, because where a tensor lies in a file decides how its memory is aligned, and that the last bit of products.
    own = {
        key.removeprefix(f"{name}/"): t.to(device, copy=True) for key, t in tensors.items() if key.rpartition("/")[0] == name
    }
    prior = setup.settings.prior(setup.network.layers[name], is_output=name == meta["output_layer"], repairs=setup.repairs)
    prior = replace(prior, mean=own.get("prior_mean", torch.zeros_like(prior.mean)))
    if "precision" not in own:
        return replace(layer, prior=prior, weights=own["weights"])
    kind = Diagonal if setup.network.layers[name].has_tokens else Dense
    precision = kind(own["precision"], prior.precision.name, setup.repairs)
    is_fixed, n = name == meta["input_layer"], setup.settings.effective_size
    return layer_from_tensors(prior, own, precision, n, is_fixed=is_fixed)
