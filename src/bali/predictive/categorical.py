"""Classes without an order."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from bali.predictive.likelihood import Likelihood
from bali.predictive.mixtures import ClassPredictive
from bali.predictive.predictive_base import Predictive
from bali.predictive.target_checks import refuse, shape_error


class Categorical(Likelihood):
    """Classes 0 … P − 1 by softmax of P outputs; y holds class indices."""

    def n_outputs(self, y: Tensor) -> int:
        return int(y.max()) + 1

    def targets(self, y: Tensor, z: Tensor) -> Tensor:
        return class_indices(self, y, z, z.shape[-1])

    def evaluate(self, z: Tensor, y: Tensor, noise_factor: Tensor | None = None) -> tuple[Tensor, Tensor]:
        index = y.unsqueeze(-1)
        log_p = functional.log_softmax(z, -1)
        gradient = log_p.exp().neg_().scatter_add_(-1, index, torch.ones_like(index, dtype=z.dtype))
        return log_p.gather(-1, index).squeeze(-1), gradient

    def predictive(
        self, z: Tensor, noise: Tensor | None = None, inflation: Tensor | None = None, dof: float | None = None
    ) -> Predictive:
        return ClassPredictive(z.softmax(-1))


def class_indices(likelihood: Likelihood, y: Tensor, z: Tensor, n_classes: int) -> Tensor:
    if y.is_floating_point() or y.dtype == torch.bool:
        raise TypeError(f"{type(likelihood).__name__} needs integer class indices, got {y.dtype}")
    if y.shape != z.shape[:-1] and not (z.dim() > 2 and y.shape == z.shape[1:-1]):
        raise shape_error(y, z)
    y = y.long().expand(z.shape[:-1])
    outside = ((y < 0) | (y >= n_classes)).unsqueeze(-1)
    refuse(outside, y.unsqueeze(-1), f"class indices must be in 0..{n_classes - 1}")
    return y
