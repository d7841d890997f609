"""The state of an inference as plain tensors and numbers, and back."""

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
from bali.conjugate.symmetric import Dense, Diagonal
from bali.inference import state_schema
from bali.inference.distributed import Group
from bali.inference.layer_tensors import layer_from_tensors, tensors_of
from bali.inference.setup import Setup
from bali.inference.state import LayerState, State

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
        state_schema.check_header(meta)
    return meta, tensors


def load_state_dict(setup: Setup, state: State, saved: Mapping[str, Any]) -> State:
    """The saved state, for an inference with the same layers and settings; nothing changes if it does not fit."""
    meta, tensors = saved["meta"], saved["tensors"]
    for key, mine in _fitting(setup, state).items():
        if meta[key] != mine:
            raise ValueError(f"the saved state has {key} {str(meta[key])[:500]}, this inference has {str(mine)[:500]}")
    setup.others.check(meta["others"], tensors)
    buffers = _saved_buffers(setup, tensors)
    state_schema.check_state(setup, state, meta, tensors)
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
