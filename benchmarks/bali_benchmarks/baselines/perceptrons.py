"""K multilayer perceptrons as plain functions of their weight matrices, and their likelihood."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional

from bali.layers.modules import ACTIVATIONS
from bali_benchmarks.baselines.method import Setting, State, Task

#: Variance of unit-scale targets below which noise is not believed.
LEAST_NOISE = 1e-5


def initial_weights(task: Task, generator: torch.Generator) -> list[Tensor]:
    """Matrices (K, D_in + 1, D_out): weights N(0, 2 / D_in), biases 0 (He et al., 2015)."""
    weights = []
    for n_in, n_out in itertools.pairwise(task.layer_sizes):
        w = torch.randn(task.members, n_in + 1, n_out, generator=generator, dtype=task.dtype, device=task.device)
        w *= math.sqrt(2.0 / n_in)
        w[:, -1] = 0.0
        weights.append(w)
    return weights


def packed(weights: Sequence[Tensor], name: str = "weight") -> State:
    """Tensors of all layers as entries of a state: weight.0, weight.1, ..."""
    return {f"{name}.{i}": w for i, w in enumerate(weights)}


def unpacked(state: State, name: str = "weight") -> list[Tensor]:
    """What `packed` packed."""
    return [state[f"{name}.{i}"] for i in range(sum(key.startswith(f"{name}.") for key in state))]


def affine(x: Tensor, weight: Tensor) -> Tensor:
    """Rows x (..., n, D_in) through the matrix (..., D_in + 1, D_out)."""
    return (
        torch.baddbmm(weight[:, -1:], x, weight[:, :-1]) if x.dim() == 3 else x @ weight[..., :-1, :] + weight[..., -1:, :]
    )


def layers(task: Task, weights: Sequence[Tensor], x: Tensor) -> tuple[list[Tensor], list[Tensor]]:
    """Inputs and outputs of every layer (before the activation); the last outputs are the network's."""
    activation = ACTIVATIONS[task.activation]()
    inputs, outputs = [x], [affine(x, weights[0])]
    for weight in weights[1:]:
        inputs.append(activation(outputs[-1]))
        outputs.append(affine(inputs[-1], weight))
    return inputs, outputs


def forward(task: Task, weights: Sequence[Tensor], x: Tensor) -> Tensor:
    """Outputs (K, n, D_out)."""
    return layers(task, weights, x)[1][-1]


def log_likelihood(task: Task, outputs: Tensor, y: Tensor, noise_variance: Tensor | None) -> Tensor:
    """log p(y | outputs) of every row, (K, n)."""
    if task.classification:
        return -functional.cross_entropy(outputs.movedim(-1, 1), y, reduction="none")
    assert noise_variance is not None
    v = noise_variance[:, None, None]
    return -0.5 * ((y - outputs).square() / v + v.log() + math.log(2 * math.pi)).sum(-1)


def updated_noise(task: Task, state: State, outputs: Tensor, y: Tensor, rate: float = 0.01) -> Tensor:
    """The noise that maximises the likelihood of recent rows: a moving average of the squared residuals, (K,)."""
    error = (y - outputs.detach()).square().mean((-2, -1))
    return state["noise_variance"].lerp(error, rate).clamp_min(LEAST_NOISE)


def per_member(setting: Setting, like: Tensor) -> Tensor:
    """A setting in the shape (K, 1, ...) that multiplies `like` (K, ...) member by member."""
    value = torch.as_tensor(setting, dtype=like.dtype, device=like.device)
    return value.reshape(-1, *[1] * (like.dim() - 1))
