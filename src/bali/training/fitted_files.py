"""A fitted network as a file: everything but the architecture, which the user's module gives."""

from __future__ import annotations

import copy
import math
import os
from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor, nn

from bali import files
from bali.conjugate.matrix_normal import CurvaturePosterior, MatrixNormal, SumNormal
from bali.inference.checkpoints import of_buffer
from bali.inference.joint_pass import Link
from bali.inference.network import Network
from bali.inference.schema import (
    ANY_NUMBER,
    COUNT,
    FLOATS,
    NOTHING,
    POSITIVE,
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
from bali.predictive import likelihoods
from bali.predictive.gaussian import Gaussian
from bali.predictive.likelihoods import Likelihood
from bali.training.fitted import Fitted
from bali.training.fitted_values import KIND, Calibration, History, Member, Units
from bali.training.rules import MAX_BLOCK

_WIDE = (torch.float64, torch.float32)  # the second on a GPU of Apple's

_UNIT = 1.001  # what a column of a basis can have at most, and rounding
#: Of a list of steps and scores.
SCORES = ListOf(ListOf(ANY_NUMBER, least=2))
_HISTORY = Record(
    {
        "scores": ListOf(SCORES),
        "losses": ListOf(ListOf(ANY_NUMBER)),
        "outcomes": ListOf(Text()),
        "refused": COUNT,
    }
)
_HEADER = Record(
    {
        "likelihood": Text(r"\w{1,100}"),
        "members": Number(1, 1e6, whole=True),
        "layers": MapOf(POSITIVE),
        "others": ListOf(Text()),
        "width": POSITIVE,
        "sample_width": Either(NOTHING, POSITIVE),
        "temperature": Number(1e-6, 1e6),
        "noise_dof": Either(NOTHING, Number(1e-3, 1e9)),
        "noise_rows": Either(NOTHING, Number(1, 1e15)),
        "unseen": ListOf(MapOf(POSITIVE)),
        "module_has_units": Truth(),
        "output_layer": Either(NOTHING, Text()),
        "classes_second": Truth(),
        "seed": Number(-(2**62), 2**62, whole=True),
        "history": _HISTORY,
    },
    optional=("noise_rows", "unseen"),
)


def member_of(
    tensors: Mapping[str, Tensor],
    variances: Mapping[str, float],
    unseen: Mapping[str, float] = MappingProxyType({}),
    *,
    is_linearised: bool,
) -> Member:
    """The member that `member_tensors` took apart; `variances` are those of the layers' priors."""

    def part(start: str) -> dict[str, Tensor]:
        return {key.removeprefix(start): value.clone() for key, value in tensors.items() if key.startswith(start)}

    kind: type[CurvaturePosterior] = SumNormal if is_linearised else MatrixNormal
    posteriors: dict[str, CurvaturePosterior] = {}
    for name, variance in variances.items():
        own = part(f"layer/{name}/")
        basis = own.pop("input_basis", None)
        posteriors[name] = kind(input_basis=basis, prior_variance=variance, **own)  # type: ignore[arg-type]
    return Member(posteriors, part("other/"), part("buffer/"), dict(unseen))


def load(path: str | os.PathLike[str], module: nn.Module, likelihood: Likelihood | None = None) -> Fitted:
    """The fitted network, for a module of the architecture that it was fitted to; the module stays as it is."""
    meta, tensors = files.read(path, KIND)
    with files.refusing(path, *files.DAMAGED):
        _HEADER(meta, "header")
        return _built(meta, tensors, module, likelihood)


def _built(meta: dict[str, Any], tensors: dict[str, Tensor], module: nn.Module, likelihood: Likelihood | None) -> Fitted:
    likelihood = _likelihood(meta["likelihood"]) if likelihood is None else likelihood
    module = copy.deepcopy(module)
    network = Network(module, has_optimizer=True, only=_parents(meta["layers"], module), max_block=MAX_BLOCK)
    if isinstance(likelihood, Gaussian) != ("noise" in tensors):
        raise SchemaError("only a Gaussian likelihood has a noise of its own, and always")
    _check(meta, tensors, network)
    device = next(module.parameters()).device
    members, unseen = [], meta.get("unseen") or [{}] * meta["members"]
    if len(unseen) != meta["members"] or any(not set(layers) <= set(meta["layers"]) for layers in unseen):
        raise SchemaError("header.unseen is not of these members and layers")
    for number in range(meta["members"]):
        own = {key.removeprefix(f"{number}/"): t.to(device) for key, t in tensors.items() if key.startswith(f"{number}/")}
        members.append(member_of(own, meta["layers"], unseen[number], is_linearised=likelihood.has_true_targets))
    noise = tensors.get("noise")
    calibration = Calibration(meta["width"], meta["sample_width"], meta["temperature"], noise, meta["noise_dof"])
    calibration = replace(calibration, noise_rows=meta.get("noise_rows"))
    units, link = None, Link(meta["classes_second"])
    if "shift" in tensors:
        units = Units(tensors["shift"], tensors["scale"], meta["module_has_units"], meta["output_layer"])
        if units.module_has_them:
            like = next(module.parameters())
            link = Link(meta["classes_second"], units.shift.to(like), units.scale.to(like))
    history = History(**meta["history"])
    return Fitted(network, likelihood, members, calibration, units, link, history, meta["seed"])


def _likelihood(name: str) -> Likelihood:
    kind = getattr(likelihoods, name, None)
    if kind is None:
        raise files.ModelFileError(
            f"is of a model with a likelihood of its own ({name}): give it as bali.load(..., likelihood=...)"
        )
    if not (isinstance(kind, type) and issubclass(kind, Likelihood)):
        raise files.ModelFileError(f"is damaged: {name} is no likelihood")
    return kind()


def _check(meta: dict[str, Any], tensors: dict[str, Tensor], network: Network) -> None:
    """Whether the tensors are those that the header speaks of and this network has; the rest of a member costs nothing."""
    missing = sorted(set(meta["layers"]) ^ set(network.layers))
    if missing:
        raise files.ModelFileError(f"is of a model with other layers than this module ({', '.join(missing)[:200]})")
    if set(meta["others"]) != set(network.others):
        raise files.ModelFileError("is of a model with other parameters without a posterior than this module")
    if meta["members"] > len(tensors):
        raise SchemaError(f"header.members is {meta['members']}, and there are {len(tensors)} tensors")
    first = {name: tensors.get(f"0/layer/{name}/mean") for name in network.layers}
    for name, layer in network.layers.items():
        found, expected = first[name], tuple(layer.weights().shape)
        if found is not None and tuple(found.shape) != expected:
            raise files.ModelFileError(
                f"does not fit: layer '{name}' has weights of shape {tuple(found.shape)} in it and {expected} in this module"
            )
    checks: dict[str, TensorCheck] = {}
    for number in range(meta["members"]):
        checks |= {f"{number}/{name}": check for name, check in member_checks(network).items()}
    d = tensors["noise"].shape[-1:] if "noise" in tensors else tensors["shift"].shape if "shift" in tensors else (1,)
    if math.prod(d) == 0 or len(d) != 1:
        raise SchemaError("noise or shift is of no output")
    if "noise" in tensors:
        checks["noise"] = TensorCheck(FLOATS, [(*d, *d)], positive_diagonal=True)
    if "shift" in tensors or "scale" in tensors:
        most = largest(next(p.dtype for p in network.module.parameters() if p.is_floating_point()))
        checks["shift"] = TensorCheck(torch.float64, [tuple(d)], most=most)
        checks["scale"] = TensorCheck(torch.float64, [tuple(d)], positive=slice(None), most=most)
    check_tensors(tensors, checks)
    output_layer = meta["output_layer"]
    if output_layer is not None and output_layer not in network.layers:
        raise SchemaError("header.output_layer is no layer")
    if output_layer is not None and "shift" in tensors and tuple(d) != (network.layers[output_layer].out_features,):
        raise SchemaError("shift is of other outputs than the output layer's")


def member_checks(network: Network) -> dict[str, TensorCheck]:
    """What the tensors of a member of this network must be."""
    found: dict[str, TensorCheck] = {}
    for name, layer in network.layers.items():
        *lead, d, o = layer.weights().shape
        maps, inputs, outputs = (*lead, d, o), (*lead, d), (*lead, o)
        own = {
            "mean": TensorCheck(_WIDE, [maps], most=largest(layer.weight.dtype)),
            "input_values": TensorCheck(_WIDE, [inputs], least=0.0),
            "output_basis": TensorCheck(_WIDE, [(*outputs, o)], most=_UNIT),
            "output_values": TensorCheck(_WIDE, [outputs], least=0.0),
        }
        if not layer.has_tokens:
            own["input_basis"] = TensorCheck(_WIDE, [(*inputs, d)], most=_UNIT)
        found |= {f"layer/{name}/{key}": check for key, check in own.items()}
    found |= {
        f"other/{name}": TensorCheck(FLOATS, [tuple(p.shape)], most=largest(p.dtype)) for name, p in network.others.items()
    }
    for name, buffer in network.buffers().items():
        found[f"buffer/{name}"] = of_buffer(name, buffer)
    return found


def _parents(names: dict[str, float], module: nn.Module) -> list[str] | None:
    """Modules to look for layers in, where not all of them have a posterior; a composite's maps belong to the composite."""
    known = {name for name, _ in module.named_modules()}
    found = []
    for name in names:
        while name not in known:
            name = name.rpartition(".")[0]
        found.append(name)
    every = Network(copy.deepcopy(module), has_optimizer=True, max_block=MAX_BLOCK).layers
    return None if set(every) == set(names) else found
