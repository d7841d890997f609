"""What the network's output says about the observed targets.

A likelihood turns raw targets into the output's shape, gives the log-likelihood of each row and its gradient with
respect to the output. Everything that depends on the task lives here and in `predictive.py`.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod

import torch
from torch import Tensor
from torch.nn import functional

from bali import linalg
from bali.predictive import ClassPredictive, Predictive, RegressionPredictive


class Likelihood(ABC):
    """p(y | z) for network outputs z (..., n, D)."""

    #: The output layer regresses on the observed targets themselves, and its noise is the likelihood's noise.
    has_true_targets: bool = False

    @abstractmethod
    def targets(self, y: Tensor, z: Tensor) -> Tensor:
        """y checked and brought to the form the other methods take, for outputs z."""

    @abstractmethod
    def evaluate(self, z: Tensor, y: Tensor, noise_factor: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """log p(y | z) of each row, (..., n), and its gradient with respect to z."""

    @abstractmethod
    def predictive(
        self, z: Tensor, noise: Tensor | None, inflation: Tensor | None = None, dof: float | None = None
    ) -> Predictive:
        """The mixture over outputs z (S, n, D), with noise covariances (S or 1, D, D) and variances inflated by (S, n)."""


class Gaussian(Likelihood):
    """Regression with one full noise covariance Σ, inferred with the output layer's weights."""

    has_true_targets = True

    def targets(self, y: Tensor, z: Tensor) -> Tensor:
        return _real_targets(y, z)

    def evaluate(self, z: Tensor, y: Tensor, noise_factor: Tensor | None = None) -> tuple[Tensor, Tensor]:
        residual = y - z
        constant = z.shape[-1] * math.log(2 * math.pi)
        if noise_factor is None:
            return -0.5 * (residual.square().sum(-1) + constant), residual
        factor = noise_factor.to(z.dtype)
        white = linalg.half_solve(factor, residual.mT)
        half_logdet = factor.diagonal(dim1=-2, dim2=-1).log().sum(-1, keepdim=True)
        log_prob = torch.linalg.vecdot(white, white, dim=-2).add_(constant).mul_(-0.5) - half_logdet
        return log_prob, linalg.transposed_half_solve(factor, white).mT

    def predictive(
        self, z: Tensor, noise: Tensor | None, inflation: Tensor | None = None, dof: float | None = None
    ) -> Predictive:
        assert noise is not None
        return RegressionPredictive(z, noise, inflation, dof)


class Categorical(Likelihood):
    """Classes 0 … D − 1 by softmax; y holds class indices."""

    def targets(self, y: Tensor, z: Tensor) -> Tensor:
        if y.is_floating_point() or y.dtype == torch.bool:
            raise TypeError(f"Categorical needs integer class indices, got {y.dtype}")
        if y.shape != z.shape[:-1] and not (z.dim() > 2 and y.shape == z.shape[1:-1]):
            raise _shape_error(y, z)
        y = y.long().expand(z.shape[:-1])
        if y.numel() and (int(y.min()) < 0 or int(y.max()) >= z.shape[-1]):
            raise ValueError(f"class indices must be in 0..{z.shape[-1] - 1}, got {int(y.min())}..{int(y.max())}")
        return y

    def evaluate(self, z: Tensor, y: Tensor, noise_factor: Tensor | None = None) -> tuple[Tensor, Tensor]:
        index = y.unsqueeze(-1)
        log_p = functional.log_softmax(z, -1)
        gradient = log_p.exp().neg_().scatter_add_(-1, index, torch.ones_like(index, dtype=z.dtype))
        return log_p.gather(-1, index).squeeze(-1), gradient

    def predictive(
        self, z: Tensor, noise: Tensor | None, inflation: Tensor | None = None, dof: float | None = None
    ) -> Predictive:
        return ClassPredictive(z.softmax(-1))


class Bernoulli(Likelihood):
    """Independent yes/no outcomes by the logistic function; y holds 0 and 1."""

    def targets(self, y: Tensor, z: Tensor) -> Tensor:
        y = _real_targets(y, z)
        if bool(((y != 0) & (y != 1)).any()):
            raise ValueError("Bernoulli needs targets 0 and 1")
        return y

    def evaluate(self, z: Tensor, y: Tensor, noise_factor: Tensor | None = None) -> tuple[Tensor, Tensor]:
        log_prob = -functional.binary_cross_entropy_with_logits(z, y.expand_as(z), reduction="none").sum(-1)
        return log_prob, y - z.sigmoid()

    def predictive(
        self, z: Tensor, noise: Tensor | None, inflation: Tensor | None = None, dof: float | None = None
    ) -> Predictive:
        if z.shape[-1] != 1:
            raise ValueError(f"prediction with Bernoulli needs one output, got {z.shape[-1]}; use Categorical for classes")
        p = z.sigmoid()
        return ClassPredictive(torch.cat([1 - p, p], -1))


def _real_targets(y: Tensor, z: Tensor) -> Tensor:
    """y as numbers of z's shape; a missing first dimension is one that all members share."""
    shapes = (z.shape, z.shape[1:]) if z.dim() > 2 else (z.shape,)
    if y.shape not in shapes and z.shape[-1] == 1:
        y = y.unsqueeze(-1)
    if y.shape not in shapes:
        raise _shape_error(y, z)
    return y.to(z.dtype)


def _shape_error(y: Tensor, z: Tensor) -> ValueError:
    return ValueError(f"y has shape {tuple(y.shape)}, which does not fit the network's output of shape {tuple(z.shape)}")
