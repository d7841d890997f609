"""What a table's training comes to: a mixture of stacks of networks, and what held-out rows told about noise and width.

Noise of each row is learnt from the residuals of rows by members that did not train on them. Residuals of training rows are
too small where a network fits them closely, and a network that learns mean and noise at once neglects what it takes for
noise. Here means are learnt first; then a few small networks learn the logarithm of the scale of the held-out residuals from
the inputs and the predicted means, with a Student-t in mind so that single residuals count little. Whether it is worth it is
judged on residuals that these networks have not seen: where noise is constant, so is the prediction of it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import ClassVar

import torch
from torch import Tensor, nn

from bali.conjugate.matrix_normal import MatrixNormal
from bali.conjugate.symmetric import Dense
from bali.inference.stack_update import StackLayer, forward
from bali.layers.modules import ACTIVATIONS
from bali.predictive import families
from bali.predictive.family_predictive import FamilyPredictive
from bali.predictive.heaps import Heaped
from bali.predictive.likelihood import LARGEST_LOG, FamilyLikelihood, exp
from bali.predictive.likelihoods import Gaussian, Likelihood
from bali.predictive.mixtures import ClassPredictive, Predictive, RegressionPredictive
from bali.training.stack_course import CourseRules, StackCourse, StackData, initial_means

# --- the posterior of a stack of perceptrons around its means, and the outputs that it gives --------------------------


@dataclass(frozen=True)
class StackPosterior:
    """K members of one shape, a matrix-normal of K matrices for each layer."""

    layers: tuple[MatrixNormal, ...]
    activation: str

    @classmethod
    def around(cls, layers: Sequence[StackLayer], n_data: Tensor, activation: str) -> StackPosterior:
        """Of the curvature N · A ⊗ S of the likelihood at the layers' means, and the prior of the weights."""
        found = []
        for number, layer in enumerate(layers):
            assert layer.inputs is not None
            assert layer.gradients is not None
            curvature = Dense(layer.inputs.values.double() * n_data.double()[:, None, None])
            gradients, mean = layer.gradients.double(), layer.mean.double()
            found.append(MatrixNormal.of(mean, curvature, gradients, layer.prior_variance, f"layer {number}"))
        return cls(tuple(found), activation)

    @property
    def n_members(self) -> int:
        return len(self.layers[0].mean)

    @property
    def sizes(self) -> list[int]:
        """Inputs, hidden layers, outputs."""
        return [layer.mean.shape[-2] - 1 for layer in self.layers] + [self.layers[-1].mean.shape[-1]]

    @property
    def prior_variances(self) -> tuple[float, ...]:
        """Of the weights of each layer."""
        return tuple(layer.prior_variance for layer in self.layers)

    @property
    def _bend(self) -> nn.Module:
        return ACTIVATIONS[self.activation]()

    def members(self, which: Sequence[int]) -> StackPosterior:
        """Some of the members."""
        index = torch.tensor(list(which), device=self.layers[0].mean.device)
        parts = [
            replace(layer, **{name: tensor[index] for name, tensor in _tensors(layer).items()})  # type: ignore[arg-type]
            for layer in self.layers
        ]
        return StackPosterior(tuple(parts), self.activation)

    @torch.no_grad()
    def outputs(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Of the mean weights, (K, n, D), and the inputs of the last layer, (K, n, H), without the ones."""
        passed = forward([layer.mean.to(x.dtype) for layer in self.layers], self._bend, x)
        return passed.outputs, passed.inputs[-1]

    @torch.no_grad()
    def draws(self, x: Tensor, n_samples: int, width: float, seed: int) -> Tensor:
        """Outputs of so many weight samples of each member, (S·K, n, D), samples outer."""
        wide = [layer.with_width(width) for layer in self.layers]
        generator = torch.Generator(device=x.device).manual_seed(seed)
        found = []
        for _ in range(n_samples):
            weights = [
                layer.weights_from(torch.randn(layer.mean.shape, generator=generator, dtype=x.dtype, device=x.device))
                for layer in wide
            ]
            found.append(forward(weights, self._bend, x).outputs)
        return torch.cat(found)

    def inflation(self, features: Tensor, noise: Tensor) -> Tensor:
        """1 + φᵀRφ (K, n): how much wider the prediction of a regression is as the output layer's weights are not known.

        R⁻¹ = ΦᵀΦ + λ I with λ the noise's variance (K,) over that of a weight's prior: the exact posterior of a linear
        regression on the features.
        """
        layer = self.layers[-1]
        assert layer.input_basis is not None
        phi = torch.cat([features, features.new_ones(*features.shape[:-1], 1)], -1)
        rotated = phi @ layer.input_basis.to(phi.dtype)
        precision = layer.input_values + (noise / layer.prior_variance)[:, None] + 1e-12
        return 1.0 + (rotated.square() / precision.to(phi.dtype)[:, None, :]).sum(-1)

    def tensors(self) -> dict[str, Tensor]:
        """What a file holds of it."""
        return {f"{number}/{name}": t for number, layer in enumerate(self.layers) for name, t in _tensors(layer).items()}


def _tensors(layer: MatrixNormal) -> dict[str, Tensor]:
    values = {field.name: getattr(layer, field.name) for field in fields(layer)}
    return {name: value for name, value in values.items() if isinstance(value, Tensor)}


# --- noise of each row ------------------------------------------------------------------------------------------------


MEMBERS, WIDTH = 5, 32
_ACTIVATION, _DOF = "gelu", 4.0
_CONSTANT = math.lgamma((_DOF + 1) / 2) - math.lgamma(_DOF / 2) - 0.5 * math.log(_DOF * math.pi)  # of its density
#: A prior that asks for reasons: noise is nearly constant unless residuals say otherwise.
_RULES = CourseRules(n_steps=250, batch_size=256, prior_variance=1.0)
#: Held-out residuals from which on steps are more, by the cube root of their number.
_USUAL_ROWS = 500
#: Fewer held-out residuals tell nothing about where noise is larger.
_LEAST_ROWS = 40
#: Predicted means among the inputs: the noise often goes with the level.
_MEANS_SCALE = 1.5
#: Of the logarithms that networks say, those that are tried: few residuals make them say too much.
_SHARES = (0.25, 0.5, 0.75, 1.0)


class _Scale(FamilyLikelihood):
    """Residuals with the tails of a Student-t; outputs are logarithms of their scales."""

    n_parameters: ClassVar[int] = 1

    def family(self, z: Tensor) -> families.Family:
        return families.StudentT(torch.zeros_like(z), exp(z), _DOF)

    def evaluate(self, z: Tensor, y: Tensor, noise_factor: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Written out: autograd would take half the time of these small networks' steps."""
        log_scale = z.double().clamp(-LARGEST_LOG, LARGEST_LOG)
        ratio = (y * log_scale.neg().exp_()).square_().div_(_DOF)
        log_prob = torch.log1p(ratio).mul_(-0.5 * (_DOF + 1)).sub_(log_scale).add_(_CONSTANT)
        gradient = (ratio / (1.0 + ratio)).mul_(_DOF + 1).sub_(1.0)
        return log_prob.sum(-1).to(z.dtype), gradient.masked_fill_(log_scale.abs() == LARGEST_LOG, 0.0).to(z.dtype)


@dataclass(frozen=True)
class RowNoise:
    """Networks of the logarithm of a row's noise scale, in units of `unit`."""

    means: list[Tensor]
    unit: Tensor  # (D,)
    gain: float  # of held-out residuals over a constant scale, nats a row
    sees: int = 0  # which of the ways that rows are encoded in

    def __call__(self, x: Tensor, mean: Tensor) -> Tensor:
        """Scales (n, D) for encoded rows x and predicted means (n, D), relative to a typical row's."""
        with torch.no_grad():
            z = forward([m.to(x.dtype) for m in self.means], ACTIVATIONS[_ACTIVATION](), _inputs(x, mean)).outputs
        return exp(z).mean(0) * self.unit.to(x.dtype)


def _inputs(x: Tensor, mean: Tensor) -> Tensor:
    return torch.cat([x, _MEANS_SCALE * mean.to(x.dtype)], -1)


def learn_row_noise(
    x: Tensor, mean: Tensor, residual: Tensor, weight: Tensor, generator: torch.Generator, sees: int = 0
) -> tuple[RowNoise, Tensor] | None:
    """From encoded rows (m, F), predicted means and residuals (m, D) at unit scale; None where a constant does as well.

    With it come the scales (m, D) of these rows by networks that did not see their residuals: the others' are too close.
    """
    if len(x) < _LEAST_ROWS:
        return None
    n, d = residual.shape
    unit = residual.abs().median(0).values.clamp_min(1e-6) * 1.4826
    order = torch.randperm(n, generator=generator, device=x.device)
    fold = torch.empty_like(order)
    fold[order] = torch.arange(n, device=x.device) % MEMBERS
    held_out = fold == torch.arange(MEMBERS, device=x.device)[:, None]
    data = StackData(_inputs(x, mean), (residual / unit).to(x.dtype), weight, held_out)
    means = initial_means(MEMBERS, [data.x.shape[1], WIDTH, d], generator, x.dtype)
    rules = replace(_RULES, n_steps=round(_RULES.n_steps * max(1.0, n / _USUAL_ROWS) ** (1 / 3)))
    course = StackCourse(means, _ACTIVATION, _Scale(), data, rules, generator)
    for _ in course.run(rules.n_steps):
        pass
    likelihood, shifts = _Scale(), torch.linspace(-3.0, 3.0, 121, dtype=x.dtype, device=x.device)
    unseen = (course.outputs(course.best, data.x) * held_out[..., None]).sum(0)  # by the member that holds a row out

    def likeliest(share: float) -> Tensor:
        """Log-likelihoods of the rows with this share of what the networks say, about the best common scale."""
        found = torch.stack([likelihood.evaluate(share * unseen + shift, data.y)[0] for shift in shifts])
        return found[(found * weight).sum(-1).argmax()]

    constant, *others = (likeliest(share) for share in (0.0, *_SHARES))
    best = max(range(len(_SHARES)), key=lambda i: float((others[i] * weight).sum()))
    gains = others[best] - constant
    if not is_gain(gains, weight):
        return None
    gain = float((gains * weight).sum() / weight.sum())
    found = RowNoise([*course.best[:-1], _SHARES[best] * course.best[-1]], unit, gain, sees)
    return found, exp(_SHARES[best] * unseen) * unit


def is_gain(gains: Tensor, weight: Tensor, n_errors: float = 1.0) -> bool:
    """Whether the mean over rows is positive by more than so many standard errors."""
    share = weight / weight.sum()
    gain = (gains * share).sum()
    error = ((gains - gain).square() * share.square()).sum().sqrt()
    return bool(gain > n_errors * error) and math.isfinite(gain.item())


# --- the mixture ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class TablePosterior:
    """Stacks of several candidates, whose members count alike.

    A regression with Gaussian noise is predicted in closed form: every member is a component, with the weights of its output
    layer integrated out. Other likelihoods are predicted by samples of all weights.
    """

    stacks: tuple[StackPosterior, ...]
    likelihoods: tuple[Likelihood, ...]  # of each
    seed: int
    width: float = 1e-4  # of the posteriors, where weights are sampled
    temperature: float = 1.0  # the power that class probabilities are raised to
    offset: Tensor | None = None  # (P,), added to the networks' outputs
    noise: Tensor | None = None  # (D, D) of a regression, in units of the rows' scales
    noise_dof: float | None = None
    row_noise: RowNoise | None = None
    by_precision: bool = False  # whether rows of little noise counted more in training
    heaps: tuple[float, ...] = ()  # factors of the first counts

    @property
    def n_members(self) -> int:
        return sum(stack.n_members for stack in self.stacks)

    @property
    def is_regression(self) -> bool:
        return isinstance(self.likelihoods[0], Gaussian)

    def predictive(self, encoded: Sequence[Tensor], n_samples: int, members: Sequence[int] | None = None) -> Predictive:
        """At rows that every stack has encoded in its own way, (n, D_c); of all members, or some of each stack."""
        stacks = [s if members is None else s.members(members) for s in self.stacks]
        if self.is_regression:
            return self._regression(stacks, encoded)
        each = max(1, -(-n_samples // sum(s.n_members for s in stacks)))
        parts: list[Predictive] = []
        for number, (stack, likelihood, x) in enumerate(zip(stacks, self.likelihoods, encoded, strict=True)):
            z = stack.draws(x, each, self.width, self.seed + number)
            parts.append(likelihood.predictive(z if self.offset is None else z + self.offset.to(z)))
        mixed = parts[0].mixed_with(parts[1:])
        if self.heaps and isinstance(mixed, FamilyPredictive):
            return replace(mixed, family=Heaped.of(mixed.family, self.heaps))
        is_tempered = isinstance(mixed, ClassPredictive) and self.temperature != 1.0
        return mixed.tempered(self.temperature) if is_tempered else mixed

    def _regression(self, stacks: Sequence[StackPosterior], encoded: Sequence[Tensor]) -> RegressionPredictive:
        noise = self.noise
        assert noise is not None
        means, inflations, typical = [], [], noise.diagonal().mean()
        for stack, x in zip(stacks, encoded, strict=False):  # noise may see rows in one way more
            z, features = stack.outputs(x)
            means.append(z)
            inflations.append(stack.inflation(features, typical.expand(stack.n_members).to(torch.float64)))
        mixed = torch.cat(means)
        rows = self.row_noise
        row_scale = None if rows is None else rows(encoded[rows.sees], mixed.mean(0))
        return RegressionPredictive(mixed, noise[None].to(mixed), torch.cat(inflations), self.noise_dof, row_scale)
