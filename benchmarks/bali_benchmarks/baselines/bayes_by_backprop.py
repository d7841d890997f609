"""Bayes by backprop: a Gaussian for every weight, fitted by gradients of the evidence lower bound.

Blundell, Cornebise, Kavukcuoglu and Wierstra (2015). A layer's outputs are sampled rather than its weights (the local
reparametrisation of Kingma, Salimans and Welling, 2015), which gives each row its own draw and gradients of lower variance.
The bound per row is

    E[log p(y | x, W)] − kl_weight / n · KL(q(W) ‖ N(0, prior_variance / D_in)),

where D_in is the number of a layer's inputs with the bias; a `kl_weight` below 1 is a colder posterior.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from bali.layers.modules import ACTIVATIONS
from bali_benchmarks.baselines.adam import adam_start, adam_step, averaged_weights
from bali_benchmarks.baselines.method import Method, Setting, State, Task
from bali_benchmarks.baselines.perceptrons import (
    affine,
    forward,
    initial_weights,
    log_likelihood,
    packed,
    per_member,
    unpacked,
    updated_noise,
)

#: Of the standard deviations at the start, relative to the prior's.
START = 0.05


@dataclass(frozen=True)
class BayesByBackprop(Method):
    title: ClassVar[str] = "Bayes by backprop"
    citation: ClassVar[str] = (
        "Blundell, Cornebise, Kavukcuoglu and Wierstra, Weight uncertainty in neural networks, ICML 2015"
    )
    grid = tuple(
        {"kl_weight": weight, "prior_variance": variance, "learning_rate": 1e-2}
        for weight in (0.1, 0.3, 1.0)
        for variance in (1.0, 10.0)
    )

    kl_weight: Setting = 1.0
    prior_variance: Setting = 1.0
    learning_rate: Setting = 1e-2

    def start(self, task: Task, generator: torch.Generator) -> State:
        means = initial_weights(task, generator)
        log_stds = [torch.log(START * self._prior_variance(m).sqrt()).expand_as(m).clone() for m in means]
        adam = adam_start([*means, *log_stds])
        return packed(means) | packed(log_stds, "log_std") | adam | {"noise_variance": means[0].new_ones(task.members)}

    def _prior_variance(self, weight: Tensor) -> Tensor:
        """Of a layer's weights, (K, 1, 1)."""
        return per_member(self.prior_variance, weight) / weight.shape[1]

    def step(self, task: Task, state: State, x: Tensor, y: Tensor, generator: torch.Generator) -> State:
        means = [m.detach().requires_grad_() for m in unpacked(state)]
        log_stds = [s.detach().requires_grad_() for s in unpacked(state, "log_std")]
        outputs = _sampled_outputs(task, means, log_stds, x, generator)
        loss = -log_likelihood(task, outputs, y, state["noise_variance"]).mean(1).sum()
        gradients = list(torch.autograd.grad(loss, [*means, *log_stds]))
        with torch.no_grad():
            for i, (mean, log_std) in enumerate(zip(means, log_stds, strict=True)):
                # ∇ KL(N(m, s²) ‖ N(0, v)) = m / v in m, and s² / v − 1 in log s.
                v, weight = self._prior_variance(mean), per_member(self.kl_weight, mean) / task.n_data
                gradients[i] = gradients[i] + weight * mean / v
                gradients[len(means) + i] = gradients[len(means) + i] + weight * ((2 * log_std).exp() / v - 1.0)
            moved, moments = adam_step(state, [*means, *log_stds], gradients, self.learning_rate)
        noise = state["noise_variance"] if task.classification else updated_noise(task, state, outputs, y)
        own = packed(moved[: len(means)]) | packed(moved[len(means) :], "log_std")
        return own | moments | {"noise_variance": noise}

    def outputs(self, task: Task, state: State, x: Tensor, n_samples: int, generator: torch.Generator) -> Tensor:
        with torch.no_grad():
            draws, parameters = [], averaged_weights(state)
            n_layers = len(parameters) // 2
            for mean, log_std in zip(parameters[:n_layers], parameters[n_layers:], strict=True):
                noise = torch.randn(n_samples, *mean.shape, generator=generator, dtype=mean.dtype, device=mean.device)
                draws.append(mean + log_std.exp() * noise)
            return forward(task, draws, x[None])


def _sampled_outputs(
    task: Task, means: list[Tensor], log_stds: list[Tensor], x: Tensor, generator: torch.Generator
) -> Tensor:
    """The network's outputs, each layer's drawn from its Gaussian given the layer below."""
    activation = ACTIVATIONS[task.activation]()
    z = x
    for i, (mean, log_std) in enumerate(zip(means, log_stds, strict=True)):
        z = z if i == 0 else activation(z)
        variance = affine(z.square(), (2 * log_std).exp())
        noise = torch.randn(variance.shape, generator=generator, dtype=z.dtype, device=z.device)
        z = affine(z, mean) + variance.sqrt() * noise
    return z
