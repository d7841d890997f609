"""Batches at the current weights: forward and backward pass (line 1), and sums of what their rows say about every layer.

A step may take in several batches. Statistics are sums over rows, so that all of them together give the posterior of one
large batch.
"""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from bali.conjugate.linalg import NumericalError
from bali.inference.first_pass import first_layers
from bali.inference.inputs import check_tensor
from bali.inference.layer_rows import layer_batch, weight_of_rows
from bali.inference.network import Call, Perturbation
from bali.inference.setup import Setup
from bali.inference.state import LayerState, State
from bali.inference.statistics import LayerStatistics, layer_statistics
from bali.inference.targets import local_output_noise
from bali.layers.layer import Layer


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
        state: State,
        totals: Totals,
        of_others: list[Tensor | None],
        rows: dict[str, Callable[[], LayerStatistics]],
        generator: torch.Generator,
        noise_generator: torch.Generator,
    ) -> None:
        self.state = state  # which the batches were seen at; the first pass tells some of it
        self.totals, self.of_others = totals, of_others
        self.generator, self.noise_generator = generator, noise_generator  # for weights, and for local noise
        self._sums: dict[str, LayerStatistics] = {}
        self._rows = rows

    def take(self, name: str) -> LayerStatistics:
        """The statistics of a layer, which are forgotten here."""
        parts = [self._sums.pop(name)] if name in self._sums else []
        if name in self._rows:
            parts.append(self._rows.pop(name)())
        return functools.reduce(operator.add, parts)

    def sum_rows(self) -> None:
        """Turn all rows into sums, so that the rows can be freed."""
        for name in self.state.layers:
            self._sums[name] = self.take(name)

    def __add__(self, other: Accumulated) -> Accumulated:
        """With another batch, at the same weights, whose rows are still kept."""
        of_others = [
            b if a is None else a if b is None else a + b for a, b in zip(self.of_others, other.of_others, strict=True)
        ]
        both = Accumulated(
            self.state, self.totals + other.totals, of_others, other._rows, other.generator, other.noise_generator
        )
        both._sums = {
            name: self._sums[name] + other._sums[name] if name in other._sums else self._sums[name] for name in self._sums
        }
        return both


def batch_pass(
    setup: Setup, state: State, x: Tensor, y: Tensor, sample_weight: Tensor | None, earlier: Accumulated | None
) -> Accumulated:
    """Line 1 for one batch, after earlier ones of the same step. Draws come from copies of the state's generator."""
    network, settings, likelihood = setup.network, setup.settings, setup.likelihood
    check_tensor(x, "x")
    check_tensor(y, "y")
    if len(y) != len(x) and network.members is None:
        raise ValueError(f"x has {len(x)} rows and y has {len(y)}")
    if x.numel() == 0:
        raise ValueError("x has no rows; where a process has none left, give it any row with a sample_weight of 0")
    dtype = next(iter(state.layers.values())).weights.dtype
    if sample_weight is not None:
        sample_weight = sample_weight.to(dtype)
        if not bool((sample_weight >= 0).all()):
            raise ValueError("sample_weight must not be negative")
    generator, noise_generator = _generators(setup, state, earlier)
    local_noise: dict[str, list[Tensor]] = {name: [] for name in network.layers}
    with torch.enable_grad():
        output, calls = network.forward(x, _perturbation(setup, state, local_noise, noise_generator))
    z = output.detach().to(dtype)
    if state.step == 0:
        state = first_layers(setup, state, x, output.detach(), calls)
    output_layer = state.output_layer
    if output_layer is not None:
        z = _regression_outputs(network.layers[output_layer], calls[output_layer][0], z, local_noise[output_layer])
    y = likelihood.targets(y, z)
    values, output_gradient = likelihood.evaluate(z, y, _observation_noise_factor(state))
    if network.members is None and values.dim() > 1:
        values = values.reshape(-1)  # middle dimensions are rows
    totals = Totals.of(values, None if sample_weight is None else weight_of_rows(sample_weight, values))
    if not math.isfinite(totals.value.sum().item()):
        raise NumericalError(
            f"the log-likelihood is not finite at step {state.step + 1}. Look for NaN or extreme values in x and y, "
            "standardise them, or lower step_size."
        )
    gradients, of_others = network.backward(output, output_gradient.to(output.dtype), calls, sample_weight)
    root = None if sample_weight is None else sample_weight.sqrt()
    inputs = {name: [call.x for call in made] for name, made in calls.items()}  # outputs, and what hangs on them, can go

    def of_layer(name: str, layer_state: LayerState) -> LayerStatistics:
        residual = network.times(y - z, root) if name == output_layer else None
        layer, given = network.layers[name], (inputs.pop(name), gradients.pop(name), residual, local_noise.pop(name))
        with torch.autocast(x.device.type, enabled=False):  # the user's own is for passes, not for the algebra
            return layer_statistics(layer_state, layer_batch(layer, *given, root, len(x)), settings)

    rows: dict[str, Callable[[], LayerStatistics]] = {
        name: functools.partial(of_layer, name, layer_state) for name, layer_state in state.layers.items()
    }
    return Accumulated(state, totals, of_others, rows, generator, noise_generator)


def _regression_outputs(layer: Layer, call: Call, z: Tensor, local_noise: list[Tensor]) -> Tensor:
    """Outputs in the shape that the output layer gave them, whatever the module did to it, as exact as its inputs are.

    True targets may lie much closer to them than a narrow type can tell.
    """
    if call.z.dtype == z.dtype:
        return z.reshape(call.z.shape)  # a final squeeze is undone
    with torch.no_grad(), torch.autocast(z.device.type, enabled=False):
        exact = layer.module(call.x.to(z.dtype))
        return exact + layer.from_rows(local_noise[0].to(z.dtype), exact) if local_noise else exact


def _perturbation(
    setup: Setup, state: State, kept: dict[str, list[Tensor]], generator: torch.Generator
) -> Perturbation | None:
    """Local reparametrisation: z + E with E ~ N(0, xᵀRx Σ) for each row, kept for the targets."""
    if setup.settings.reparam != "local" or state.step == 0:
        return None

    def perturb(name: str, x: Tensor, z: Tensor) -> Tensor:
        layer, posterior = setup.network.layers[name], state.posteriors[name]
        with torch.autocast(z.device.type, enabled=False):
            own = layer.weight.dtype
            rows, at = layer.input_rows(x).to(own), layer.output_rows(z.detach()).to(own)
            noise = local_output_noise(posterior, rows, at, "mode", generator).to(z.dtype)
        kept[name].append(noise)
        return z + layer.from_rows(noise, z)

    return perturb


def _generators(setup: Setup, state: State, earlier: Accumulated | None) -> tuple[torch.Generator, torch.Generator]:
    """Copies to draw weights and local noise from, so that a pass that fails has changed nothing.

    Local noise belongs to rows, so every process draws its own; all else is drawn from one generator, alike on all.
    """
    if earlier is not None:
        generator = earlier.generator.clone_state()
        alike = earlier.noise_generator is earlier.generator
        return generator, generator if alike else earlier.noise_generator.clone_state()
    generator = state.generator.clone_state()
    if setup.group is None or setup.settings.reparam != "local":
        return generator, generator
    key = [generator.initial_seed(), state.step, setup.group.rank]
    own = torch.Generator(device=generator.device)
    return generator, own.manual_seed(int(np.random.SeedSequence(key).generate_state(1, np.uint64)[0] >> np.uint64(1)))


def _observation_noise_factor(state: State) -> Tensor | None:
    """Factor of Σ_L in a regression; the identity before the first step."""
    if state.output_layer is None or state.step == 0:
        return None
    posterior = state.layers[state.output_layer].posterior
    assert posterior is not None
    return posterior.noise_mode_factor()
