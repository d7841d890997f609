"""A training of `bali.fit` as files, from which another process goes on to the last bit.

The file itself has the training of the member that is under way; members that are finished have files of their own beside
it, with a number at the end. What files may hold is checked first.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from bali import files
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
from bali.training.averaging import DECAYS, AveragedPoints
from bali.training.course import Course, Job, summary
from bali.training.fitted_files import SCORES, member_checks, member_of
from bali.training.fitted_values import TrainedMember, member_tensors

# --- what the files may hold, for the fit that goes on from them ------------------------------------------------------


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


# --- the files --------------------------------------------------------------------------------------------------------


KIND, MEMBER_KIND = "fit checkpoint", "fit member"
_REMEDY = "; remove it, and the training starts anew"


def save(path: str | os.PathLike[str], job: Job, course: Course, member: int) -> None:
    """Replace the file by one that holds everything of this member's training."""
    tensors: dict[str, Tensor] = {"rng": torch.get_rng_state()}
    for name, layer in course.layers.items():
        tensors |= {f"layer/{name}/{key}": value for key, value in layer.tensors().items()}
    for decay, point in zip(DECAYS, course.averages.points, strict=False):
        tensors |= {f"average {decay}/{name}": value for name, value in point.items()}
    tensors |= {f"best/{name}": value for name, value in (course.best or {}).items()}
    tensors |= {f"other/{name}": parameter.detach() for name, parameter in job.network.others.items()}
    tensors |= {f"buffer/{name}": buffer for name, buffer in job.network.buffers().items()}
    noises = {"noise": course.noise, "best_noise": course.best_noise}
    tensors |= {name: value.clone() for name, value in noises.items() if value is not None}  # they may be one tensor
    if course.optimizer is not None:
        for index, state in course.optimizer.state_dict()["state"].items():
            tensors |= {f"optimizer/{index}/{key}": torch.as_tensor(value) for key, value in state.items()}
    meta = summary(course) | {"member": member, "seed": job.seed, "n_examples": len(job.examples)}
    files.write(path, KIND, meta, tensors)


def load(path: str | os.PathLike[str], job: Job, course: Course, member: int) -> None:
    """Put a course that has just been started where the file's is, if there is a file and it is this member's."""
    if not Path(path).is_file():
        return
    meta, tensors = files.read(path, KIND)
    if meta.get("member") != member:
        return
    _check_same_fit(path, meta, job)
    with files.refusing(path, files.DAMAGED[0], _REMEDY):
        check_course(meta, tensors, job, course)
        _take_over(job, course, meta, tensors)


def _check_same_fit(path: str | os.PathLike[str], meta: dict[str, Any], job: Job) -> None:
    mine = {"seed": job.seed, "n_examples": len(job.examples)}
    for key, value in mine.items():
        if meta.get(key) != value:
            raise ValueError(
                f"the checkpoint {os.fspath(path)!r} is of another fit: its {key} is {str(meta.get(key))[:60]}, here it is "
                f"{value}. Give the same data and seed, or another file."
            )


def member_path(path: str | os.PathLike[str], member: int) -> Path:
    return Path(f"{os.fspath(path)}.{member}")


def save_member(path: str | os.PathLike[str], job: Job, trained: TrainedMember, member: int) -> None:
    """Write a member that is finished."""
    tensors = member_tensors(trained.member) | {"rng": torch.get_rng_state()}
    if trained.noise is not None:
        tensors["noise"] = trained.noise
    meta = {
        "seed": job.seed,
        "n_examples": len(job.examples),
        "layers": {name: posterior.prior_variance for name, posterior in trained.member.posteriors.items()},
        "scores": trained.scores,
        "losses": trained.losses,
        "outcome": trained.outcome,
        "refused": trained.refused,
        "unseen": trained.member.unseen,
    }
    files.write(member_path(path, member), MEMBER_KIND, meta, tensors)


def load_member(path: str | os.PathLike[str], job: Job, member: int) -> TrainedMember | None:
    """The member, if its training is finished; one that `epochs` ended goes on where there are now more of them."""
    file = member_path(path, member)
    if not file.is_file():
        return None
    meta, tensors = files.read(file, MEMBER_KIND)
    _check_same_fit(file, meta, job)
    with files.refusing(file, files.DAMAGED[0], _REMEDY):
        check_member(meta, tensors, job)
        is_short = job.max_steps is None or len(meta["losses"]) < job.max_steps
        if meta["outcome"] == "epochs" and is_short:
            return None
        parts = {name: value.to(job.device) for name, value in tensors.items() if name not in ("rng", "noise")}
        found = member_of(parts, meta["layers"], meta.get("unseen", {}), is_linearised=job.likelihood.has_true_targets)
        scores = [(int(step), float(score)) for step, score in meta["scores"]]
        torch.set_rng_state(tensors["rng"])
        return TrainedMember(found, tensors.get("noise"), scores, meta["losses"], meta["outcome"], meta["refused"])


def _take_over(job: Job, course: Course, meta: dict[str, Any], tensors: dict[str, Tensor]) -> None:
    def part(prefix: str) -> dict[str, Tensor]:
        return {key.removeprefix(prefix): value.clone() for key, value in tensors.items() if key.startswith(prefix)}

    per_example = meta["rows_per_example"]
    course.layers = {
        name: layer.with_tensors(part(f"layer/{name}/"), per_example[name], is_diagonal=job.network.layers[name].has_tokens)
        for name, layer in course.layers.items()
    }
    points = [part(f"average {decay}/") for decay in DECAYS]
    course.averages = AveragedPoints([p for p in points if p], meta["count"])
    course.best = part("best/") or None
    course.noise, course.best_noise = tensors.get("noise"), tensors.get("best_noise")
    _numbers(course, meta)
    with torch.no_grad():
        for name, parameter in job.network.others.items():
            parameter.copy_(tensors[f"other/{name}"])
        for name, buffer in job.network.buffers().items():
            buffer.copy_(tensors[f"buffer/{name}"])
    if course.optimizer is not None:
        state: dict[int, dict[str, Tensor]] = {}
        for key, kept in part("optimizer/").items():
            index, _, what = key.partition("/")
            state.setdefault(int(index), {})[what] = kept
        groups = course.optimizer.state_dict()["param_groups"]
        course.optimizer.load_state_dict({"state": state, "param_groups": groups})
    torch.set_rng_state(tensors["rng"])


def _numbers(course: Course, meta: dict[str, Any]) -> None:
    course.step, course.phase, course.waited = meta["step"], meta["phase"], meta["waited"]
    course.phase_start, course.best_score, course.refused = meta["phase_start"], meta["best_score"], meta["refused"]
    course.scores = [(int(step), float(score)) for step, score in meta["scores"]]
    course.losses = list(meta["losses"])
