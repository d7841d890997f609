"""What `bali.fit` returns: a posterior over a network of the user's, which predicts, samples and saves itself."""

from __future__ import annotations

import copy
import os
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from bali.conjugate.matrix_normal import CurvaturePosterior
from bali.conjugate.sampling import standard_normal
from bali.inference.frozen import KnownFeatures, answered_from, frozen_body
from bali.inference.inputs import Inputs, n_rows, rows
from bali.inference.joint_pass import Link
from bali.inference.linearised import Expansion
from bali.inference.network import Network
from bali.layers.kinds import is_inside
from bali.predictive.likelihoods import Categorical, Likelihood
from bali.predictive.mixtures import ClassPredictive, Predictive, RegressionPredictive, concatenate
from bali.training import fitted_values
from bali.training.averaging import Point, load_point
from bali.training.conditioning import Conditioned
from bali.training.continued import Memory, Prior, make_prior
from bali.training.examples import as_inputs, check_finite
from bali.training.fit_health import FittedHealth, fitted_health
from bali.training.fitted_values import Calibration, History, InUnits, Member, Units
from bali.training.output_regression import output_regression
from bali.training.sampled_outputs import sampled_outputs

#: Numbers of a prediction at once: samples × rows × outputs.
_NUMBERS_AT_ONCE = 2**24


class Fitted:
    """A posterior over the weights of a network. `module` is the network with mean weights, a plain module."""

    _known: tuple[Inputs, KnownFeatures | None] | None = None  # see `asking_about`

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
        self.memory: Memory | None = None  # rows kept for the next fit, see `bali.fit`
        self._regressions: dict[int, Conditioned] = {}  # by the number of samples

    def __getstate__(self) -> dict[str, Any]:
        return vars(self) | {"_regressions": {}}  # they can be made again

    # --- learning on --------------------------------------------------------------------------------------------

    def as_prior(self, forget: float = 0.0, new: Collection[str] = ()) -> Prior:
        """What this fit knows, as the prior of the next one: `bali.fit(module, data, likelihood, prior=...)`.

        `forget` is the share of the old data's weight that fades; `new` names modules that start afresh, such as the output
        layer of a new task.
        """
        return make_prior(self.members, self.calibration.noise, self.units, self.link, self.memory, forget, new)

    def with_layers_of(self, other: Fitted, names: Collection[str]) -> Fitted:
        """This network with the layers in these modules as another fit had them: the output layers of old tasks."""
        chosen = [name for name in self.members[0].posteriors if is_inside(name, names)]
        if not chosen:
            raise ValueError(f"there are no layers in {sorted(names)}; there are {sorted(self.members[0].posteriors)}")
        if len(other.members) != len(self.members):
            raise ValueError(f"the other fit has {len(other.members)} members, this one has {len(self.members)}")
        members = [
            replace(mine, posteriors=mine.posteriors | {name: its.posteriors[name] for name in chosen})
            for mine, its in zip(self.members, other.members, strict=True)
        ]
        calibration = other.calibration  # what was fitted on that task's rows
        return Fitted(self.network, self.likelihood, members, calibration, other.units, other.link, self.history, self.seed)

    def condition(self, x: Any, y: Any, n_samples: int = 64) -> Conditioned:
        """With these rows added to the output layer's posterior, in closed form and without training.

        For regressions with a `Gaussian`. What comes back predicts, and can be conditioned on more rows; the other layers
        stay as they are. n_samples is the number of their weight samples, each with a regression of its own.
        """
        return self.output_regression(x, n_samples).condition(x, y)

    def output_regression(self, x: Any, n_samples: int = 64) -> Conditioned:
        """The output layer as an exact regression, before any rows beyond the training's; x tells what inputs look like."""
        if n_samples not in self._regressions:
            self._regressions[n_samples] = output_regression(self, x, n_samples)
        return self._regressions[n_samples]

    @property
    def n_targets(self) -> int:
        """Of a regression, numbers of an observation."""
        if self.units is None:
            raise ValueError("only a regression with a Gaussian likelihood has targets that are numbers")
        return len(self.units.shift)

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
        check_finite(inputs)
        n = n_rows(inputs)
        if n == 0:
            raise ValueError("x has no rows")
        each = -(-n_samples // len(self.members))
        if differentiable:
            yield self._predict(inputs, each, keeps_graph=True)
            return
        with self._evaluating():
            numbers = self.link(self.network.plain_output(rows(inputs, slice(0, 1))))[0].numel()
        at_once = max(1, min(n, _NUMBERS_AT_ONCE // max(1, n_samples * numbers)))
        for start in range(0, n, at_once):
            yield self._predict(rows(inputs, slice(start, start + at_once)), each)

    def _predict(self, x: Inputs, each: int, *, keeps_graph: bool = False) -> Predictive:
        with self._evaluating(), torch.set_grad_enabled(keeps_graph):
            return self._predictive(self.linked_outputs(x, each))

    @contextmanager
    def asking_about(self, x: Inputs) -> Iterator[None]:
        """A frozen body runs once for all that is asked about x meanwhile."""
        with torch.no_grad(), self.network.evaluating():
            self._known = (x, self._features(x))
        try:
            yield
        finally:
            self._known = None

    def _features(self, x: Inputs) -> KnownFeatures | None:
        """A frozen body runs once for all samples, unless the graph behind it is wanted."""
        if torch.is_grad_enabled():
            return None
        if self._known is not None and self._known[0] is x:
            return self._known[1]
        body = frozen_body(self.network, rows(x, slice(0, 2)))
        return None if body is None else (body, body.features(x))

    @contextmanager
    def _evaluating(self) -> Iterator[None]:
        """A user's own autocast is for training: predictions are as exact as the module."""
        with torch.inference_mode(False), torch.autocast(self._device.type, enabled=False), self.network.evaluating():
            yield

    @property
    def _device(self) -> torch.device:
        return next(self.network.module.parameters()).device

    @property
    def _dtype(self) -> torch.dtype:
        return next(p.dtype for p in self.network.module.parameters() if p.is_floating_point())

    @property
    def is_linearised(self) -> bool:
        """Whether predictions are those of the network's first-order expansion about the mean weights (docs/method.md)."""
        return self.likelihood.has_true_targets

    def departures(self, number: int, n: int, width: float) -> Iterator[Point]:
        """So many samples of W − M of every layer of a member."""
        generator = torch.Generator(device=self._device).manual_seed(self.seed + 7919 * number)
        wide = {name: p.with_width(width) for name, p in self.members[number].posteriors.items()}
        for _ in range(n):
            yield {
                name: p.departure_from(standard_normal(p.mean.shape, self.network.layers[name].weight, generator))
                for name, p in wide.items()
            }

    def _points(self, n: int, width: float) -> Iterator[Point]:
        """Points of so many weight samples of each member."""
        for number in range(len(self.members)):
            mean = self._mean_point(number)
            for departures in self.departures(number, n, width):
                yield mean | {name: mean[name] + part for name, part in departures.items()}

    def put_mean(self, number: int) -> None:
        """A member's mean weights into the module."""
        self._put(self._mean_point(number))

    def _mean_point(self, number: int) -> Point:
        member = self.members[number]
        means = {name: p.mean.to(self._dtype) for name, p in member.posteriors.items()}
        return means | member.others | {f"/buffer/{name}": value for name, value in member.buffers.items()}

    def _put(self, point: Mapping[str, Tensor]) -> None:
        with torch.no_grad():
            load_point(self.network, point)
            for name, buffer in self.network.buffers().items():
                buffer.copy_(point[f"/buffer/{name}"])

    def linked_outputs(self, x: Inputs, n_samples: int) -> Tensor:
        """What the likelihood sees under the posterior, (S, n, ..., D), so many samples of each member."""
        if not self.is_linearised:
            return self.sampled_outputs(x, n_samples, self.calibration.width)
        with answered_from(self._features(x)):
            numbers = range(len(self.members))
            return torch.stack([z for number in numbers for z in self._linear_outputs(x, number, n_samples)])

    def sampled_outputs(self, x: Inputs, n_samples: int, width: float) -> Tensor:
        """The same of networks with drawn weights."""
        known = self._features(x)
        if known is None and not torch.is_grad_enabled() and not self.is_linearised:
            found = [self._fast(x, number, n_samples, width) for number in range(len(self.members))]
            return torch.cat(found) if len(found) > 1 else found[0]
        with answered_from(known):
            return torch.stack([self._output_at(point, x) for point in self._points(n_samples, width)])

    def _fast(self, x: Inputs, number: int, n_samples: int, width: float) -> Tensor:
        generator = torch.Generator(device=self._device).manual_seed(self.seed + 7919 * number)
        wide = {name: p.with_width(width) for name, p in self.members[number].posteriors.items()}
        self.put_mean(number)
        return sampled_outputs(self.network, wide, x, n_samples, generator, self.link)

    def _output_at(self, point: Point, x: Inputs) -> Tensor:
        self._put(point)
        return self.link(Expansion(self.network).output(x) if torch.is_grad_enabled() else self.network.plain_output(x))

    def _linear_outputs(self, x: Inputs, number: int, n_samples: int) -> list[Tensor]:
        """z + J δ and z − J δ for every second sample δ: their mean is that of the mean weights."""
        self.put_mean(number)
        expansion, found = Expansion(self.network), list[Tensor]()
        for departures in self.departures(number, -(-n_samples // 2), self.calibration.width):
            output, change = expansion.change(x, departures)
            found += [self.link(output + change), self.link(output - change)]
        return found[:n_samples]

    def _predictive(self, z: Tensor) -> Predictive:
        """Of linked outputs (S, n, ..., D): rows are flattened, calibration and units applied."""
        z = z.reshape(len(z), -1, z.shape[-1])
        calibration = self.calibration
        if calibration.noise is None:
            if type(self.likelihood) is Categorical:  # whose outputs are logarithms of its probabilities already
                return self.likelihood.predictive(calibration.temperature * z, None)
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
        return self._plain(self._mean_point(0))

    def sample(self, n: int) -> list[nn.Module]:
        """Plain modules with weights drawn from the posterior, in the units of the targets; members take turns.

        Of a `Gaussian` they are drawn as widely as held-out examples allow for whole networks, which is narrower than what
        `predict` says far from the data: it is linear in the weights, and networks are not.
        """
        width = self.calibration.sample_width
        each = -(-n // len(self.members))
        points = list(self._points(each, self.calibration.width if width is None else width))  # the first member's first
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
        return nn.Sequential(module, InUnits(units.shift, units.scale, self.link.classes_second))

    @property
    def posteriors(self) -> dict[str, CurvaturePosterior]:
        """The posterior of every layer of the first member, by module name, as predictions use it."""
        return {name: p.with_width(self.calibration.width) for name, p in self.members[0].posteriors.items()}

    def to(self, where: torch.device | str | torch.dtype) -> Fitted:
        """Move everything to a device, or the network to a type of numbers; in place, as with modules."""
        device = self._device if isinstance(where, torch.dtype) else torch.device(where)
        self.network.module.to(where)
        self._regressions = {}
        parameters, buffers = self.network.others, self.network.buffers()
        self.members = [
            replace(
                member,
                posteriors={name: posterior.to(device) for name, posterior in member.posteriors.items()},
                others={name: value.to(parameters[name]) for name, value in member.others.items()},
                buffers={name: value.to(buffers[name]) for name, value in member.buffers.items()},
            )
            for member in self.members
        ]
        shift, scale, like = self.link.shift, self.link.scale, next(self.network.module.parameters())
        if shift is not None and scale is not None:
            self.link = replace(self.link, shift=shift.to(like), scale=scale.to(like))
        return self

    def health(self) -> FittedHealth:
        """Whether the fit is sound: numbers of every layer and of the whole, and `problems`, a sentence for each."""
        return fitted_health(self.posteriors, self.history, self.calibration)

    def __repr__(self) -> str:
        n = sum(p.mean.numel() for p in self.members[0].posteriors.values())
        best = min((score for scores in self.history.scores for _, score in scores), default=float("nan"))
        steps = sum(len(losses) for losses in self.history.losses)
        calibration = self.calibration
        told = "" if calibration.temperature == 1.0 else f", temperature {calibration.temperature:.3g}"
        if calibration.noise is not None:
            scale = 1.0 if self.units is None else self.units.scale.to(calibration.noise)
            noise = ", ".join(f"{value:.3g}" for value in (calibration.noise.diagonal().sqrt() * scale).tolist()[:3])
            told = f", noise {noise}{', ...' if len(calibration.noise) > 3 else ''}"
        return (
            f"Fitted({type(self.likelihood).__name__}, {len(self.members)} member{'s' if len(self.members) > 1 else ''}, "
            f"{len(self.members[0].posteriors)} layers with {n:,} weights, {steps:,} steps, "
            f"held-out negative log-likelihood {best:.4f}, width {calibration.width:.2g}{told})"
        )

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write everything but the architecture to one file; `bali.load(path, module=...)` reads it."""
        name = type(self.likelihood).__name__
        fitted_values.write(path, name, self.members, self.calibration, self.units, self.link, self.history, self.seed)
