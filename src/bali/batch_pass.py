"""Batches at the current weights: forward and backward pass (line 1), and sums of what their rows say about every layer.

A step may take in several batches. Statistics are sums over rows, so that all of them together give the posterior of one
large batch.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from bali.first_pass import first_states
from bali.layer_update import LayerState, LayerStatistics, condition_layer, forget_factors, layer_statistics, leaves_noise
from bali.linalg import NumericalError
from bali.network import Call, Perturbation
from bali.rows import layer_batch, weight_of_rows
from bali.sampling import standard_normal
from bali.targets import local_output_noise

if TYPE_CHECKING:
    from bali.inference import LayerwiseInference


@dataclass
class Totals:
    """Sums over rows of log-likelihoods and weights, (K,) with members."""

    value: Tensor  # Σ w log p
    weight: Tensor | float  # Σ w
    squares: Tensor | float  # Σ w²

    @classmethod
    def of(cls, values: Tensor, weight: Tensor | None) -> Totals:
        if weight is None:
            return cls(values.sum(-1), float(values.shape[-1]), float(values.shape[-1]))
        return cls((values * weight).sum(-1), weight.sum(-1), weight.square().sum(-1))

    def __add__(self, other: Totals) -> Totals:
        return Totals(self.value + other.value, self.weight + other.weight, self.squares + other.squares)

    def check(self) -> None:
        if not (bool((self.weight > 0).all()) if isinstance(self.weight, Tensor) else self.weight > 0):
            raise ValueError("a step needs at least one row (of each member) with a positive sample_weight")

    @property
    def mean(self) -> Tensor:
        return self.value / self.weight

    @property
    def effective_rows(self) -> float:
        """How many rows of equal weight they are worth, (Σw)²/Σw²; the mean over members."""
        rows = self.weight**2 / self.squares
        return float(rows.mean()) if isinstance(rows, Tensor) else rows


class Accumulated:
    """What the batches of one step said. The rows of the last one are kept and summed when a layer's turn has come."""

    def __init__(
        self,
        states: dict[str, LayerState],
        output_layer: str | None,
        totals: Totals,
        of_others: list[Tensor | None],
        rows: dict[str, Callable[[], LayerStatistics]],
        generator: torch.Generator,
    ) -> None:
        self.states, self.output_layer, self.totals, self.of_others = states, output_layer, totals, of_others
        self.generator = generator  # of local noise
        self._sums: dict[str, LayerStatistics] = {}
        self._rows = rows

    def take(self, name: str) -> LayerStatistics:
        """The statistics of a layer, which are forgotten here."""
        parts = [part for part in (self._sums.pop(name, None),) if part is not None]
        if name in self._rows:
            parts.append(self._rows.pop(name)())
        return functools.reduce(lambda a, b: a + b, parts)

    def sum_rows(self) -> None:
        """Turn all rows into sums, so that the rows can be freed."""
        for name in self.states:
            self._sums[name] = self.take(name)

    def __add__(self, other: Accumulated) -> Accumulated:
        """With another batch, at the same weights, whose rows are still kept."""
        of_others = [
            b if a is None else a if b is None else a + b for a, b in zip(self.of_others, other.of_others, strict=True)
        ]
        totals = self.totals + other.totals
        both = Accumulated(self.states, self.output_layer, totals, of_others, other._rows, self.generator)
        both._sums = {
            name: self._sums[name] + other._sums[name] if name in other._sums else self._sums[name] for name in self._sums
        }
        return both


def update(inference: LayerwiseInference, accumulated: Accumulated, rate: float) -> dict[str, LayerState]:
    """Lines 2 to 6 of all layers, one after the other, so that rows are freed on the way."""
    updated, settings = {}, inference.settings.at(inference.steps + 1)
    moves_noise = settings.moves_noise_at(inference.steps + 1)
    for name, state in accumulated.states.items():
        true_targets = name == accumulated.output_layer
        leaves = leaves_noise(state, settings, moves_noise=moves_noise, true_targets=true_targets)
        forget_factors(state, leaves_noise=leaves)
        updated[name] = condition_layer(state, accumulated.take(name), settings, rate)
    for state in updated.values():
        state.weights = draw_weights(inference, state)
    return updated


def draw_weights(inference: LayerwiseInference, state: LayerState) -> Tensor:
    """Line 6, for one layer."""
    posterior, settings = state.posterior, inference.settings
    assert posterior is not None
    if settings.reparam != "weight":
        return posterior.mean.to(state.weights.dtype)
    root = posterior.noise_root(settings.noise, inference.generator)
    return posterior.weights_from(standard_normal(posterior.mean.shape, state.weights, inference.generator), root)


@contextmanager
def unchanged_if_it_fails(inference: LayerwiseInference) -> Iterator[None]:
    """Puts back what passes and draws change on their way: the generator and the module's buffers."""
    generator_state = inference.generator.get_state()
    try:
        with inference.network.restoring_buffers():
            yield
    except BaseException:
        inference.generator.set_state(generator_state)
        raise


def batch_pass(
    inference: LayerwiseInference, x: Tensor, y: Tensor, sample_weight: Tensor | None, earlier: Accumulated | None
) -> Accumulated:
    """Line 1 for one batch. Nothing of the inference changes but the generator, where noise is drawn."""
    network, settings, likelihood = inference.network, inference.settings, inference.likelihood
    if len(y) != len(x) and network.members is None:
        raise ValueError(f"x has {len(x)} rows and y has {len(y)}")
    if x.numel() == 0:
        raise ValueError("x has no rows; where a process has none left, give it any row with a sample_weight of 0")
    dtype = next(iter(inference.states.values())).weights.dtype
    if sample_weight is not None:
        sample_weight = sample_weight.to(dtype)
        if not bool((sample_weight >= 0).all()):
            raise ValueError("sample_weight must not be negative")
    generator = _noise_generator(inference) if earlier is None else earlier.generator
    local_noise: dict[str, list[Tensor]] = {name: [] for name in network.layers}
    with torch.enable_grad(), _narrow(settings.forward_dtype, x.device):
        output, calls = network.forward(x, _perturbation(inference, local_noise, generator))
    z = output.detach().to(dtype)
    states, output_layer = inference.states, inference.output_layer
    if inference.steps == 0:
        states, output_layer = first_states(states, settings, likelihood, x, output.detach(), calls, inference.repairs)
    if output_layer is not None:
        z = _regression_outputs(states[output_layer], calls[output_layer][0], z, local_noise[output_layer])
    y = likelihood.targets(y, z)
    values, output_gradient = likelihood.evaluate(z, y, _observation_noise_factor(inference))
    if network.members is None and values.dim() > 1:
        values = values.reshape(-1)  # middle dimensions are rows
    row_weight = None if sample_weight is None else weight_of_rows(sample_weight, values)
    totals = Totals.of(values, row_weight)
    if not math.isfinite(totals.value.sum().item()):
        raise NumericalError(
            f"the log-likelihood is not finite at step {inference.steps + 1}. Look for NaN or extreme values in x and y, "
            "standardise them, or lower step_size."
        )
    gradients, of_others = network.backward(output, output_gradient.to(output.dtype), calls, sample_weight)
    root = None if sample_weight is None else sample_weight.sqrt()
    moves_noise = settings.moves_noise_at(inference.steps + 1)
    inputs = {name: [call.x for call in made] for name, made in calls.items()}  # outputs, and what hangs on them, can go

    def of_layer(name: str, state: LayerState) -> LayerStatistics:
        residual = network.times(y - z, root) if name == output_layer else None
        sharing = settings.sharing_of(state.layer)
        batch = layer_batch(
            state.layer, inputs.pop(name), gradients.pop(name), residual, local_noise.pop(name), root, len(x), sharing
        )
        return layer_statistics(state, batch, settings, moves_noise=moves_noise)

    rows: dict[str, Callable[[], LayerStatistics]] = {
        name: functools.partial(of_layer, name, state) for name, state in states.items()
    }
    return Accumulated(states, output_layer, totals, of_others, rows, generator)


def _narrow(dtype: torch.dtype | None, device: torch.device) -> AbstractContextManager[object]:
    """Forward passes in a narrower type; the backward pass follows it."""
    return nullcontext() if dtype is None else torch.autocast(device.type, dtype)


def _regression_outputs(state: LayerState, call: Call, z: Tensor, local_noise: list[Tensor]) -> Tensor:
    """Outputs in the shape that the output layer gave them, whatever the module did to it, as exact as its inputs are.

    True targets may lie much closer to them than a narrow type can tell.
    """
    if call.z.dtype == z.dtype:
        return z.reshape(call.z.shape)  # a final squeeze is undone
    with torch.no_grad():
        exact = state.layer.module(call.x.to(z.dtype))
        return exact + state.layer.from_rows(local_noise[0].to(z.dtype), exact) if local_noise else exact


def _perturbation(
    inference: LayerwiseInference, kept: dict[str, list[Tensor]], generator: torch.Generator
) -> Perturbation | None:
    """Local reparametrisation: z + E with E ~ N(0, xᵀRx Σ) for each row, kept for the targets."""
    if inference.settings.reparam != "local" or inference.steps == 0:
        return None

    def perturb(name: str, x: Tensor, z: Tensor) -> Tensor:
        layer = inference.network.layers[name]
        with torch.autocast(z.device.type, enabled=False):
            like = layer.weight
            rows, at = layer.input_rows(x), layer.output_rows(z.detach())
            rows, at = rows.to(like.dtype), at.to(like.dtype)
            noise = local_output_noise(inference.posteriors[name], rows, at, inference.settings.noise, generator).to(z.dtype)
        kept[name].append(noise)
        return z + layer.from_rows(noise, z)

    return perturb


def _noise_generator(inference: LayerwiseInference) -> torch.Generator:
    """Local noise belongs to rows, so every process draws its own; all else is drawn from one generator, alike on all."""
    if inference.group is None or inference.settings.reparam != "local":
        return inference.generator
    key = [inference.generator.initial_seed(), inference.steps, inference.group.rank]
    own = torch.Generator(device=inference.generator.device)
    return own.manual_seed(int(np.random.SeedSequence(key).generate_state(1, np.uint64)[0] >> np.uint64(1)))


def _observation_noise_factor(inference: LayerwiseInference) -> Tensor | None:
    """Factor of Σ_L in a regression; the identity before the first step."""
    if inference.output_layer is None or inference.steps == 0:
        return None
    posterior = inference.states[inference.output_layer].posterior
    assert posterior is not None
    return posterior.noise_mode_factor()
