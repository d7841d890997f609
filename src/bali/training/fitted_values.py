"""What a fitted network consists of."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from torch import Tensor, nn

from bali.conjugate.matrix_normal import CurvaturePosterior
from bali.training.averaged_points import Point


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
