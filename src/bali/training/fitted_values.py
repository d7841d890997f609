"""What a fitted network consists of, and how it is written into a file, which `fitted_files.py` reads."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field, fields

from torch import Tensor, nn

from bali import files
from bali.conjugate.matrix_normal import CurvaturePosterior
from bali.inference.joint_pass import Link
from bali.training.averaging import Point


@dataclass(frozen=True)
class Member:
    """One network: a posterior for each layer, and what has none."""

    posteriors: dict[str, CurvaturePosterior]
    others: Point  # parameters without a posterior, by name
    buffers: Point
    unseen: dict[str, float] = field(default_factory=dict)  # of layers, S on held-out examples over S on training ones


@dataclass(frozen=True)
class TrainedMember:
    """A member, and how its training went."""

    member: Member
    noise: Tensor | None
    scores: list[tuple[int, float]]
    losses: list[float]
    outcome: str
    refused: int


@dataclass(frozen=True)
class Calibration:
    """What held-out examples told after training."""

    width: float = 0.01  # of the posterior that predicts, see `CurvaturePosterior`
    sample_width: float | None = None  # of the one that modules are drawn from, where predictions are linearised
    temperature: float = 1.0  # the power that class probabilities are raised to
    noise: Tensor | None = None  # covariance of a regression's noise, in the units of training
    noise_dof: float | None = None  # of its tails
    noise_rows: float | None = None  # examples that it was measured on


@dataclass(frozen=True)
class Units:
    """Targets were standardised for training, y = shift + scale · z, and predictions are in their own units."""

    shift: Tensor
    scale: Tensor
    module_has_them: bool  # the module answers in the targets' own units, as a pretrained one does
    output_layer: str | None  # the linear layer whose outputs are the module's, which can take them over


@dataclass
class History:
    """The course of the training, of each member: (step, score) where a score is the mean negative log-likelihood of the
    held-out examples, and the loss of each batch."""

    scores: list[list[tuple[int, float]]] = field(default_factory=list)
    losses: list[list[float]] = field(default_factory=list)
    outcomes: list[str] = field(default_factory=list)
    refused: int = 0  # steps that would have ruined the fit, and were not taken

    @classmethod
    def of(cls, trained: Sequence[TrainedMember]) -> History:
        scores, losses = [t.scores for t in trained], [t.losses for t in trained]
        return cls(scores, losses, [t.outcome for t in trained], sum(t.refused for t in trained))


class InUnits(nn.Module):
    """shift + scale · z, after a network that was trained on standardised targets."""

    def __init__(self, shift: Tensor, scale: Tensor, channels_second: bool = False) -> None:
        super().__init__()
        self.shift: Tensor
        self.scale: Tensor
        self.channels_second = channels_second
        self.register_buffer("shift", shift.float())
        self.register_buffer("scale", scale.float())

    def forward(self, z: Tensor) -> Tensor:
        if not self.channels_second:
            return self.shift + self.scale * z
        shape = (-1, *[1] * (z.dim() - 2))
        return self.shift.reshape(shape) + self.scale.reshape(shape) * z


# --- into a file ------------------------------------------------------------------------------------------------------


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
