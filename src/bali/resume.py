"""The state of an inference as plain tensors and numbers, and back."""

from __future__ import annotations

import functools
import os
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from bali import files, linalg
from bali.layer_update import LayerState
from bali.moments import DebiasedRate, Moments

if TYPE_CHECKING:
    from bali.inference import LayerwiseInference


_BUFFER = "/buffer/"  # no layer's name: keys of layers are "name/what"


def _is_of_no_layer(key: str) -> bool:
    return key == "generator" or key.startswith(_BUFFER)


def state_dict(inference: LayerwiseInference) -> dict[str, Any]:
    """{"meta": numbers and names, "tensors": ...}: all that a resumed run needs to go on exactly."""
    tensors: dict[str, Tensor] = {"generator": inference.generator.get_state()}
    for name, state in inference.states.items():
        kept = {"weights": state.weights, "precision": state.precision, "gg": state.gg, "velocity": state.velocity}
        if inference.settings.prior_mean == "weights":
            kept["prior_mean"] = state.prior.mean
        if state.posterior is not None:
            kept |= {"mean": state.posterior.mean, "scale": state.posterior.scale}
        if state.targets is not None:
            kept |= {"xy": state.targets.xy, "yy": state.targets.yy}
        tensors |= {f"{name}/{key}": value.clone() for key, value in kept.items() if value is not None}
    other_meta, other_tensors = inference.others.state_dict()
    tensors |= other_tensors
    tensors |= {f"{_BUFFER}{name}": buffer.clone() for name, buffer in inference.network.buffers().items()}
    meta = inference.settings.summary() | {
        "others": other_meta,
        "steps": inference.steps,
        "ema_weight": inference.rate.weight,
        "ema_squares": inference.rate.squares,
        "output_layer": inference.output_layer,
        "input_layer": next((name for name, state in inference.states.items() if state.xx_is_exact), None),
        "prior_precision": _prior_precision(inference),
        "layers": {name: list(state.weights.shape) for name, state in inference.states.items()},
        "repairs": {"count": dict(inference.repairs.count), "largest": dict(inference.repairs.largest)},
    }
    return {"meta": meta, "tensors": tensors}


def save(inference: LayerwiseInference, path: str | os.PathLike[str]) -> None:
    group, state = inference.group, inference.state_dict()
    with nullcontext() if group is None else group.together():
        if group is None or group.rank == 0:
            files.write(path, "inference state", state["meta"], state["tensors"])


def load(inference: LayerwiseInference, path: str | os.PathLike[str]) -> None:
    group, read = inference.group, functools.partial(files.read, path, "inference state")
    meta, tensors = read() if group is None else group.objects_from_first(read)
    inference.load_state_dict({"meta": meta, "tensors": tensors})


def _prior_precision(inference: LayerwiseInference) -> dict[str, Any]:
    return {name: state.prior.precision[..., 0, 0].tolist() for name, state in inference.states.items()}


def load_state_dict(inference: LayerwiseInference, saved: Mapping[str, Any]) -> None:
    """Put an inference with the same layers and settings in a saved state; nothing changes if it does not fit."""
    meta, tensors = saved["meta"], saved["tensors"]
    mine = state_dict(inference)["meta"]
    meta = {"sharing": "expand", "prior_mean": "zero", "others": {}} | meta  # which older files do not have
    for key in ("layers", "prior_precision", *inference.settings.summary()):
        if meta[key] != mine[key]:
            raise ValueError(f"the saved state has {key} {meta[key]}, this inference has {mine[key]}")
    states = {name: _load_layer(inference, state, meta, tensors) for name, state in inference.states.items()}
    inference.others.check(meta["others"], tensors)
    buffers = _saved_buffers(inference, tensors)
    inference.others.load(meta["others"], tensors)
    for buffer, value in buffers:
        buffer.copy_(value)
    inference.states = states
    inference.steps, inference.rate = meta["steps"], DebiasedRate(meta["ema_weight"], meta["ema_squares"])
    inference.repairs.count = dict(meta["repairs"]["count"])
    inference.repairs.largest = dict(meta["repairs"]["largest"])
    inference.output_layer = meta["output_layer"]
    inference.generator.set_state(tensors["generator"].cpu())
    inference.network.assign({name: state.weights for name, state in states.items()})


def _saved_buffers(inference: LayerwiseInference, tensors: Mapping[str, Tensor]) -> list[tuple[Tensor, Tensor]]:
    """The module's buffers, each with its saved value."""
    mine = inference.network.buffers()
    saved = {key.removeprefix(_BUFFER): value for key, value in tensors.items() if key.startswith(_BUFFER)}
    shapes, wanted = ({name: tuple(t.shape) for name, t in sorted(found.items())} for found in (saved, mine))
    if shapes != wanted:
        raise ValueError(f"the saved state has buffers {shapes}, this inference has {wanted}")
    return [(buffer, saved[name]) for name, buffer in mine.items()]


def _load_layer(
    inference: LayerwiseInference, state: LayerState, meta: Mapping[str, Any], tensors: Mapping[str, Tensor]
) -> LayerState:
    name, device, settings = state.layer.name, state.weights.device, inference.settings
    # Copied, because where a tensor lies in a file decides how its memory is aligned, and that the last bit of products.
    own = {
        key.removeprefix(f"{name}/"): t.to(device, copy=True) for key, t in tensors.items() if key.rpartition("/")[0] == name
    }
    needed = {"weights"} if meta["steps"] == 0 else {"weights", "precision", "mean", "scale"}
    is_output = name == meta["output_layer"]
    prior = settings.prior(state.layer, is_output=is_output, device=device, repairs=inference.repairs)
    prior = replace(prior, mean=own.get("prior_mean", prior.mean))
    if "xx" in own:  # older files, where that of tokens was a matrix
        xx = own.pop("xx")
        own["precision"] = prior.precision_plus(linalg.diagonal(xx)[..., None] if state.layer.has_tokens else xx)
    if not needed <= set(own):
        raise ValueError(f"the saved state lacks {sorted(needed - set(own))} of layer '{name}'")
    posterior, targets = None, None
    if "mean" in own:
        posterior = replace(
            prior,
            mean=own["mean"],
            precision=own["precision"],
            scale=own["scale"],
            dof=prior.dof + settings.effective_size,
        )
    if "xy" in own:
        targets = Moments(own["xy"].new_zeros(()), own["xy"], own["yy"], settings.effective_size)
    exact = name == meta["input_layer"]
    precision, gg, moved = (own.get(key) for key in ("precision", "gg", "velocity"))
    return LayerState(state.layer, prior, own["weights"], posterior, precision, gg, targets, exact, moved)


def of_members(saved: Mapping[str, Any], n_members: int, index: Sequence[int]) -> dict[str, Any]:
    """The saved state of some of the stacked members."""

    def take(key: str, tensor: Tensor) -> Tensor:
        if _is_of_no_layer(key):
            return tensor
        # Members may share one tensor (the Gram matrix of shared inputs); then it has no dimension for them.
        shared = tensor.dim() == (1 if key.endswith("/gg") else 2)
        return (tensor.expand(n_members, *tensor.shape) if shared else tensor)[list(index)]

    meta = dict(saved["meta"])
    meta["layers"] = {name: [len(index), *shape[1:]] for name, shape in meta["layers"].items()}
    meta["prior_precision"] = {
        name: torch.as_tensor(value, dtype=torch.float64)[list(index)].tolist() if isinstance(value, list) else value
        for name, value in meta["prior_precision"].items()
    }
    return {"meta": meta, "tensors": {key: take(key, tensor) for key, tensor in saved["tensors"].items()}}


def _tensor_or_rest(saved: Mapping[str, Any], key: str) -> Tensor:
    """A saved tensor; where a mean had no momentum when it was saved, it does not move."""
    tensors = saved["tensors"]
    if key not in tensors and key.endswith("/velocity"):
        return torch.zeros_like(tensors[key.removesuffix("velocity") + "mean"])
    return tensors[key]


def concatenate(states: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The saved states of several stacks of members, as one stack; counters are those of the first."""
    first = states[0]
    meta = dict(first["meta"])
    meta["layers"] = {
        name: [sum(s["meta"]["layers"][name][0] for s in states), *shape[1:]] for name, shape in meta["layers"].items()
    }
    meta["prior_precision"] = {
        name: [v for s in states for v in s["meta"]["prior_precision"][name]] for name in meta["prior_precision"]
    }
    keys = {key for state in states for key in state["tensors"]}
    tensors = {
        key: first["tensors"][key] if _is_of_no_layer(key) else torch.cat([_tensor_or_rest(s, key) for s in states])
        for key in sorted(keys)
    }
    return {"meta": meta, "tensors": tensors}
