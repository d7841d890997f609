"""What `bali.fit` returns: a posterior over a network of the user's, which predicts, samples and saves itself."""

from __future__ import annotations

import copy
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields
from typing import Any

import torch
from torch import Tensor, nn

from bali import files
from bali.conjugate.matrix_normal import DEFAULT_SHARE, MatrixNormal
from bali.conjugate.sampling import standard_normal
from bali.inference.inputs import Inputs, n_rows, rows
from bali.inference.joint_pass import Link
from bali.inference.network import Network, as_output
from bali.predictive.likelihoods import Likelihood
from bali.predictive.mixtures import ClassPredictive, Predictive, RegressionPredictive, concatenate
from bali.training.averaged_points import Point, load_point
from bali.training.examples import as_inputs
from bali.training.sampled_outputs import sampled_outputs

#: Of its files.
KIND = "fitted network"
#: Numbers of a prediction at once: samples × rows × outputs.
_NUMBERS_AT_ONCE = 2**24


@dataclass(frozen=True)
class Member:
    """One network: a posterior for each layer, and what has none."""

    posteriors: dict[str, MatrixNormal]
    others: Point  # parameters without a posterior, by name
    buffers: Point


@dataclass(frozen=True)
class Calibration:
    """What held-out examples told after training."""

    width: float = DEFAULT_SHARE  # of the posterior, see `MatrixNormal.share`
    temperature: float = 1.0  # the power that class probabilities are raised to
    noise: Tensor | None = None  # covariance of a regression's noise, in the units of training
    noise_dof: float | None = None  # of its tails


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


class Fitted:
    """A posterior over the weights of a network. `module` is the network with mean weights, a plain module."""

    def __init__(
        self,
        network: Network,
        likelihood: Likelihood,
        members: list[Member],
        calibration: Calibration,
        units: Units | None,
        link: Link,
        history: History,
        seed: int,
    ) -> None:
        self.network, self.likelihood, self.members, self.calibration = network, likelihood, members, calibration
        self.units, self.link, self.history, self.seed = units, link, history, seed

    # --- prediction ---------------------------------------------------------------------------------------------

    def predict(self, x: Any, n_samples: int = 64) -> Predictive:
        """The predictive distribution of new observations at x, in the units of the targets.

        x is what the module's forward takes: a tensor, array, or a tuple or dict of them. A row is predicted the same
        whichever rows it comes with; for functions that all rows share, see `sample`. Where x requires gradients, the
        prediction can be differentiated with respect to it.
        """
        chunks = list(self.predict_chunks(x, n_samples))
        return chunks[0] if len(chunks) == 1 else concatenate(chunks)

    def predict_chunks(self, x: Any, n_samples: int = 64) -> Iterator[Predictive]:
        """Predictions of consecutive chunks of rows: memory does not grow with their number."""
        if n_samples < 1:
            raise ValueError(f"n_samples must be at least 1, got {n_samples}")
        differentiable = isinstance(x, Tensor) and x.requires_grad and torch.is_grad_enabled()
        inputs: Inputs = x if differentiable else as_inputs(x, self._device, self._dtype)
        n = n_rows(inputs)
        if n == 0:
            raise ValueError("x has no rows")
        each = -(-n_samples // len(self.members))
        if differentiable:
            outputs = [self.link(as_output(self._copy(point)(x), None)) for point in self._draws(each)]
            yield self._predictive(torch.stack(outputs))
            return
        with torch.inference_mode(False), self.network.evaluating():
            first = self.linked_outputs(rows(inputs, slice(0, 1)), 1)
            at_once = max(1, min(n, _NUMBERS_AT_ONCE // max(1, n_samples * first[0, 0].numel())))
            for start in range(0, n, at_once):
                yield self._predictive(self.linked_outputs(rows(inputs, slice(start, start + at_once)), each))

    @property
    def _device(self) -> torch.device:
        return next(self.network.module.parameters()).device

    @property
    def _dtype(self) -> torch.dtype:
        return next(p.dtype for p in self.network.module.parameters() if p.is_floating_point())

    def _draws(self, n_samples: int) -> Iterator[Point]:
        """Points of so many weight samples of each member."""
        for number, member in enumerate(self.members):
            generator = torch.Generator(device=self._device).manual_seed(self.seed + 7919 * number)
            wide = {name: p.with_share(self.calibration.width) for name, p in member.posteriors.items()}
            for _ in range(n_samples):
                weights = {
                    name: p.weights_from(standard_normal(p.mean.shape, self.network.layers[name].weight, generator))
                    for name, p in wide.items()
                }
                yield weights | member.others | {f"/buffer/{name}": value for name, value in member.buffers.items()}

    def _put(self, point: Mapping[str, Tensor]) -> None:
        load_point(self.network, point)
        for name, buffer in self.network.buffers().items():
            buffer.copy_(point[f"/buffer/{name}"])

    def linked_outputs(self, x: Inputs, n_samples: int) -> Tensor:
        """What the likelihood sees under weight samples, (S, n, ..., D), so many of each member."""
        found = []
        for number, member in enumerate(self.members):
            generator = torch.Generator(device=self._device).manual_seed(self.seed + 7919 * number)
            wide = {name: p.with_share(self.calibration.width) for name, p in member.posteriors.items()}
            self._put(_point(member))
            found += sampled_outputs(self.network, wide, x, n_samples, generator, self.link)
        return torch.stack(found)

    def _predictive(self, z: Tensor) -> Predictive:
        """Of linked outputs (S, n, ..., D): rows are flattened, calibration and units applied."""
        z = z.reshape(len(z), -1, z.shape[-1])
        calibration = self.calibration
        if calibration.noise is None:
            found = self.likelihood.predictive(z, None)
            is_tempered = isinstance(found, ClassPredictive) and calibration.temperature != 1.0
            return found.tempered(calibration.temperature) if is_tempered else found
        predictive = RegressionPredictive(z, calibration.noise[None].to(z), None, calibration.noise_dof)
        if self.units is None:
            return predictive
        return predictive.affine(self.units.scale.to(z), self.units.shift.to(z))

    # --- out again ----------------------------------------------------------------------------------------------

    @property
    def module(self) -> nn.Module:
        """A copy of the network with mean weights (of the first member), in the units of the targets: a plain module."""
        return self._plain(_point(self.members[0]))

    def sample(self, n: int) -> list[nn.Module]:
        """Plain modules with weights drawn from the posterior, in the units of the targets; members take turns."""
        each = -(-n // len(self.members))
        points = list(self._draws(each))  # those of the first member first
        order = [member * each + turn for turn in range(each) for member in range(len(self.members))]
        return [self._plain(points[i]) for i in order[:n]]

    def _copy(self, point: Mapping[str, Tensor]) -> nn.Module:
        with self.network.evaluating():
            self._put(point)
            copied = copy.deepcopy(self.network.module)
        return copied.eval()

    def _plain(self, point: Mapping[str, Tensor]) -> nn.Module:
        module, units = self._copy(point), self.units
        if units is None or units.module_has_them:
            return module
        linear = module.get_submodule(units.output_layer) if units.output_layer is not None else None
        if isinstance(linear, nn.Linear) and linear.bias is not None:
            with torch.no_grad():  # shift + scale · (xW + b) is a linear layer too
                linear.weight.mul_(units.scale.to(linear.weight)[:, None])
                linear.bias.mul_(units.scale.to(linear.bias)).add_(units.shift.to(linear.bias))
            return module
        return nn.Sequential(module, InUnits(units.shift, units.scale))

    @property
    def posteriors(self) -> dict[str, MatrixNormal]:
        """The posterior of every layer of the first member, by module name, as predictions use it."""
        return {name: p.with_share(self.calibration.width) for name, p in self.members[0].posteriors.items()}

    def __repr__(self) -> str:
        n = sum(p.mean.numel() for p in self.members[0].posteriors.values())
        best = min((score for scores in self.history.scores for _, score in scores), default=float("nan"))
        steps = sum(len(losses) for losses in self.history.losses)
        return (
            f"Fitted({type(self.likelihood).__name__}, {len(self.members)} member{'s' if len(self.members) > 1 else ''}, "
            f"{len(self.members[0].posteriors)} layers with {n:,} weights, {steps:,} steps, "
            f"held-out negative log-likelihood {best:.4f})"
        )

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write everything but the architecture to one file; `bali.load(path, module=...)` reads it."""
        tensors: dict[str, Tensor] = {}
        for number, member in enumerate(self.members):
            for name, posterior in member.posteriors.items():
                parts = {f.name: getattr(posterior, f.name) for f in fields(posterior)}
                kept = {key: value for key, value in parts.items() if isinstance(value, Tensor)}
                tensors |= {f"{number}/layer/{name}/{key}": value for key, value in kept.items()}
            tensors |= {f"{number}/other/{name}": value for name, value in member.others.items()}
            tensors |= {f"{number}/buffer/{name}": value for name, value in member.buffers.items()}
        calibration, units = self.calibration, self.units
        if calibration.noise is not None:
            tensors["noise"] = calibration.noise
        if units is not None:
            tensors |= {"shift": units.shift, "scale": units.scale}
        meta = {
            "likelihood": type(self.likelihood).__name__,
            "members": len(self.members),
            "layers": {name: p.prior_variance for name, p in self.members[0].posteriors.items()},
            "others": list(self.members[0].others),
            "width": calibration.width,
            "temperature": calibration.temperature,
            "noise_dof": calibration.noise_dof,
            "module_has_units": units is not None and units.module_has_them,
            "output_layer": None if units is None else units.output_layer,
            "classes_second": self.link.classes_second,
            "seed": self.seed,
            "history": {
                "scores": self.history.scores,
                "losses": self.history.losses,
                "outcomes": self.history.outcomes,
                "refused": self.history.refused,
            },
        }
        files.write(path, KIND, meta, tensors)


def _point(member: Member) -> Point:
    """A member's mean weights and all that has no posterior."""
    point = {name: p.mean for name, p in member.posteriors.items()} | member.others
    return point | {f"/buffer/{name}": value for name, value in member.buffers.items()}


class InUnits(nn.Module):
    """shift + scale · z, after a network that was trained on standardised targets."""

    def __init__(self, shift: Tensor, scale: Tensor) -> None:
        super().__init__()
        self.shift: Tensor
        self.scale: Tensor
        self.register_buffer("shift", shift.float())
        self.register_buffer("scale", scale.float())

    def forward(self, z: Tensor) -> Tensor:
        return self.shift + self.scale * z
