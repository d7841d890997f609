"""A batch at the current weights: forward and backward pass (line 1), and what its rows say about every layer."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from bali.conjugate.linalg import NumericalError
from bali.inference.first_pass import first_layers
from bali.inference.inputs import check_tensor
from bali.inference.local_noise import LocalNoise
from bali.inference.recording import Call
from bali.inference.settings import Setup
from bali.inference.state import LayerState, State
from bali.inference.statistics import LayerStatistics, layer_batch, layer_statistics, weight_of_rows
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


@dataclass(frozen=True)
class BatchStatistics:
    """All that a step needs of a batch, or of several (`joint_step.py`)."""

    state: State  # which the rows were seen at; the first pass tells some of it
    totals: Totals
    of_others: list[Tensor | None]  # gradients of the parameters without a posterior
    layers: dict[str, Callable[[], LayerStatistics]]  # sums over rows, computed when a layer's turn has come
    generator: torch.Generator  # a copy of the state's, to draw the next weights from
    local_noise: LocalNoise | None

    def take(self, name: str) -> LayerStatistics:
        """The statistics of a layer, which are forgotten here."""
        return self.layers.pop(name)()


def batch_pass(
    setup: Setup, state: State, x: Tensor, y: Tensor, sample_weight: Tensor | None, earlier: BatchStatistics | None
) -> BatchStatistics:
    """Line 1 for one batch, after earlier ones of the same step."""
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
    generator = (state if earlier is None else earlier).generator.clone_state()  # a pass that fails has changed nothing
    noise = None
    if settings.reparam == "local" and state.step:
        noise = LocalNoise.of_batch(setup, state, generator, None if earlier is None else earlier.local_noise)
    with torch.enable_grad():
        output, calls = network.forward(x, noise)
    z = output.detach().to(dtype)
    if state.step == 0:
        state = first_layers(setup, state, x, output.detach(), calls)
    output_layer, noise_rows = state.output_layer, {} if noise is None else noise.rows
    if output_layer is not None:
        z = _regression_outputs(network.layers[output_layer], calls[output_layer][0], z, noise_rows.get(output_layer))
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
        given = (inputs.pop(name), gradients.pop(name), residual, noise_rows.pop(name, []))
        with torch.autocast(x.device.type, enabled=False):  # the user's own is for passes, not for the algebra
            return layer_statistics(layer_state, layer_batch(network.layers[name], *given, root, len(x)), settings)

    layers: dict[str, Callable[[], LayerStatistics]] = {
        name: functools.partial(of_layer, name, layer_state) for name, layer_state in state.layers.items()
    }
    return BatchStatistics(state, totals, of_others, layers, generator, noise)


def _regression_outputs(layer: Layer, call: Call, z: Tensor, local_noise: list[Tensor] | None) -> Tensor:
    """Outputs in the shape that the output layer gave them, whatever the module did to it, as exact as its inputs are.

    True targets may lie much closer to them than a narrow type can tell.
    """
    if call.z.dtype == z.dtype:
        return z.reshape(call.z.shape)  # a final squeeze is undone
    with torch.no_grad(), torch.autocast(z.device.type, enabled=False):
        exact = layer.module(call.x.to(z.dtype))
        return exact + layer.from_rows(local_noise[0].to(z.dtype), exact) if local_noise else exact


def _observation_noise_factor(state: State) -> Tensor | None:
    """Factor of Σ_L in a regression; the identity before the first step."""
    if state.output_layer is None or state.step == 0:
        return None
    posterior = state.layers[state.output_layer].posterior
    assert posterior is not None
    return posterior.noise_mode_factor()
