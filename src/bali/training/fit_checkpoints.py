"""A training of `bali.fit` as files, from which another process goes on to the last bit.

The file itself has the training of the member that is under way; members that are finished have files of their own beside
it, with a number at the end.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from bali import files
from bali.training.averaged_points import DECAYS, AveragedPoints
from bali.training.course import Course, Job, summary
from bali.training.fit_checkpoint_schema import check_course, check_member
from bali.training.fitted_files import member_of
from bali.training.fitted_values import TrainedMember
from bali.training.fitted_writing import member_tensors

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
