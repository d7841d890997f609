"""What the files of a training may hold, for the fit that goes on from them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from bali.inference.checkpoints import of_buffer
from bali.inference.schema import (
    ANY_NUMBER,
    COUNT,
    FLOATS,
    POSITIVE,
    Choice,
    ListOf,
    MapOf,
    Number,
    Record,
    TensorCheck,
    check_tensors,
    largest,
)
from bali.training.averaged_points import DECAYS
from bali.training.course import Course, Job
from bali.training.fitted_files import SCORES, member_checks

_SEED = Number(-(2**62), 2**62, whole=True)
_COURSE = Record(
    {
        **dict.fromkeys(("step", "phase", "waited", "count", "refused", "member", "n_examples"), COUNT),
        **dict.fromkeys(("phase_start", "best_score"), ANY_NUMBER),
        "seed": _SEED,
        "scores": SCORES,
        "losses": ListOf(ANY_NUMBER),
        "rows_per_example": MapOf(POSITIVE),
    }
)
_MEMBER = Record(
    {
        "seed": _SEED,
        "n_examples": COUNT,
        "layers": MapOf(POSITIVE),
        "scores": SCORES,
        "losses": ListOf(ANY_NUMBER),
        "outcome": Choice(("converged", "epochs")),
        "refused": COUNT,
        "unseen": MapOf(POSITIVE),
    },
    optional=("unseen",),
)
#: The state of torch's random numbers.
_RNG = TensorCheck(torch.uint8, [tuple(torch.get_rng_state().shape)])


def check_course(meta: Mapping[str, Any], tensors: Mapping[str, Tensor], job: Job, course: Course) -> None:
    """Whether a checkpoint is one of this job; `course` is one that has just been started."""
    _COURSE(meta, "header")
    Record(dict.fromkeys(course.layers, POSITIVE))(meta["rows_per_example"], "header.rows_per_example")
    Number(0, job.rules.phases - 1, whole=True)(meta["phase"], "header.phase")
    checks = {"rng": _RNG} | {f"buffer/{name}": of_buffer(name, buffer) for name, buffer in job.network.buffers().items()}
    for name, layer in course.layers.items():
        *lead, d, o = layer.mean.shape
        most = largest(job.network.layers[name].weight.dtype)
        maps = TensorCheck(FLOATS, [(*lead, d, o)], most=most)
        inputs = TensorCheck(FLOATS, [(*lead, d)] if job.network.layers[name].has_tokens else [(*lead, d, d)], optional=True)
        own = {
            "mean": maps,
            "prior_mean": TensorCheck(FLOATS, [(*lead, d, o)], most=most, optional=layer.prior_mean is None),
            "drive": TensorCheck(FLOATS, [(*lead, d, o)], optional=True),
            "gradients": TensorCheck(FLOATS, [(*lead, o, o)], optional=True),
            "inputs": inputs,
            "damped": inputs,
            "damping": TensorCheck(FLOATS, [tuple(lead)], least=0.0, optional=True),
            "steepness": TensorCheck(FLOATS, [tuple(lead)], optional=True),
            "most": TensorCheck(FLOATS, [(*lead, o)], least=0.0, optional=True),
        }
        checks |= {f"layer/{name}/{key}": check for key, check in own.items()}
    points = {name: (layer.mean.shape, job.network.layers[name].weight.dtype) for name, layer in course.layers.items()}
    points |= {name: (parameter.shape, parameter.dtype) for name, parameter in job.network.others.items()}
    for name, (size, dtype) in points.items():
        for place in (*(f"average {decay}" for decay in DECAYS), "best"):
            checks[f"{place}/{name}"] = TensorCheck(
                FLOATS, [tuple(size)], most=largest(dtype), optional=True, together=f"the {place} weights"
            )
    for index, (name, parameter) in enumerate(job.network.others.items()):
        shape = tuple(parameter.shape)
        checks[f"other/{name}"] = TensorCheck(FLOATS, [shape], most=largest(parameter.dtype))
        for key in ("exp_avg", "exp_avg_sq", "step"):
            checks[f"optimizer/{index}/{key}"] = TensorCheck(
                FLOATS, [() if key == "step" else shape], optional=True, together="the optimizer"
            )
    check_tensors(tensors, checks | _noises(course.noise, ("noise", "best_noise")))


def check_member(meta: Mapping[str, Any], tensors: Mapping[str, Tensor], job: Job) -> None:
    """Whether a finished member is one of this job's network."""
    _MEMBER(meta, "header")
    Record(dict.fromkeys(job.network.layers, POSITIVE))(meta["layers"], "header.layers")
    _, y = job.examples.take(torch.arange(1))
    noise = torch.eye(y.shape[-1] if y.dim() > 1 else 1) if job.likelihood.has_true_targets else None
    check_tensors(tensors, {"rng": _RNG} | member_checks(job.network) | _noises(noise, ("noise",)))


def _noises(like: Tensor | None, names: tuple[str, ...]) -> dict[str, TensorCheck]:
    if like is None:
        return {}
    shapes, factored = [tuple(like.shape)], (torch.float64, torch.float32)
    return {name: TensorCheck(factored, shapes, positive_diagonal=True, optional=name != "noise") for name in names}
