"""A fitted network into a file; `fitted_files.py` reads it."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import fields

from torch import Tensor

from bali import files
from bali.inference.joint_pass import Link
from bali.training.fitted_values import Calibration, History, Member, Units

KIND = "fitted network"


def write(
    path: str | os.PathLike[str],
    likelihood: str,
    members: Sequence[Member],
    calibration: Calibration,
    units: Units | None,
    link: Link,
    history: History,
    seed: int,
) -> None:
    """Write everything but the architecture."""
    tensors: dict[str, Tensor] = {}
    for number, member in enumerate(members):
        tensors |= {f"{number}/{name}": value for name, value in member_tensors(member).items()}
    if calibration.noise is not None:
        tensors["noise"] = calibration.noise
    if units is not None:
        tensors |= {"shift": units.shift, "scale": units.scale}
    meta = {
        "likelihood": likelihood,
        "members": len(members),
        "layers": {name: p.prior_variance for name, p in members[0].posteriors.items()},
        "others": list(members[0].others),
        "width": calibration.width,
        "sample_width": calibration.sample_width,
        "temperature": calibration.temperature,
        "noise_dof": calibration.noise_dof,
        "noise_rows": calibration.noise_rows,
        "unseen": [member.unseen for member in members],
        "module_has_units": units is not None and units.module_has_them,
        "output_layer": None if units is None else units.output_layer,
        "classes_second": link.classes_second,
        "seed": seed,
        "history": {
            "scores": history.scores,
            "losses": history.losses,
            "outcomes": history.outcomes,
            "refused": history.refused,
        },
    }
    files.write(path, KIND, meta, tensors)


def member_tensors(member: Member) -> dict[str, Tensor]:
    """What a file holds of a member."""
    tensors: dict[str, Tensor] = {}
    for name, posterior in member.posteriors.items():
        parts = {f.name: getattr(posterior, f.name) for f in fields(posterior)}
        tensors |= {f"layer/{name}/{key}": value for key, value in parts.items() if isinstance(value, Tensor)}
    tensors |= {f"other/{name}": value for name, value in member.others.items()}
    return tensors | {f"buffer/{name}": value for name, value in member.buffers.items()}
