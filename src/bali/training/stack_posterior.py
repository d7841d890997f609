"""The posterior of a stack of perceptrons around its means, and the outputs that it gives."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace

import torch
from torch import Tensor, nn

from bali.conjugate.matrix_normal import MatrixNormal
from bali.conjugate.symmetric import Dense
from bali.inference.stack_pass import forward
from bali.inference.stack_update import StackLayer
from bali.layers.modules import ACTIVATIONS


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
