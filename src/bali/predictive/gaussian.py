"""The Gaussian whose noise the output layer infers."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from bali.conjugate import linalg
from bali.predictive.likelihood import Likelihood
from bali.predictive.mixtures import RegressionPredictive
from bali.predictive.predictive_base import Predictive, UndefinedError
from bali.predictive.target_checks import columns_for, n_columns


class Gaussian(Likelihood):
    """Regression with one full noise covariance Σ, inferred with the output layer's weights."""

    has_true_targets = True

    def n_outputs(self, y: Tensor) -> int:
        return n_columns(y)

    def targets(self, y: Tensor, z: Tensor) -> Tensor:
        return columns_for(y, z, z.shape[-1]).to(z.dtype)

    def evaluate(self, z: Tensor, y: Tensor, noise_factor: Tensor | None = None) -> tuple[Tensor, Tensor]:
        residual = y - z
        constant = z.shape[-1] * math.log(2 * math.pi)
        if noise_factor is None:
            return -0.5 * (residual.square().sum(-1) + constant), residual
        factor = noise_factor.to(z.dtype)
        if factor.shape[-1] == 1:  # numbers, for which the calls below would be many
            white = residual / factor
            log_prob = torch.addcmul(factor.log().add_(0.5 * constant).neg_(), white, white, value=-0.5)
            return log_prob.squeeze(-1), white.div_(factor)
        white = linalg.half_solve(factor, residual.mT)
        half_logdet = factor.diagonal(dim1=-2, dim2=-1).log().sum(-1, keepdim=True)
        log_prob = torch.linalg.vecdot(white, white, dim=-2).add_(constant).mul_(-0.5) - half_logdet
        return log_prob, linalg.transposed_half_solve(factor, white).mT

    def predictive(
        self, z: Tensor, noise: Tensor | None = None, inflation: Tensor | None = None, dof: float | None = None
    ) -> Predictive:
        if noise is None:
            raise UndefinedError("Gaussian predicts with the noise of a trained output layer; there is none here")
        return RegressionPredictive(z, noise, inflation, dof)
