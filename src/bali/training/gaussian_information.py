"""What labels of a regression would tell, in closed form: outputs are jointly Gaussian over rows."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from bali.conjugate import linalg
from bali.predictive.mixtures import RegressionPredictive


@dataclass
class GaussianInformation:
    """Outputs f_i = m_i + F_i u of D numbers, u a standard normal vector of length S.

    F's columns are the weight samples' departures from their mean, over √S. A label y_i = f_i + noise leaves u Gaussian with
    covariance P. Noise is white and of unit size: outputs were divided by its root.
    """

    pool: Tensor  # F, (n, D, S)
    target: Tensor  # (m, D, S)
    covariance: Tensor  # P, (S, S)

    @classmethod
    def of(cls, predictive: RegressionPredictive, target: RegressionPredictive) -> GaussianInformation:
        noise = predictive.noise.double().mean(0)
        factor = linalg.cholesky(noise, "predictive noise")

        def departures(p: RegressionPredictive) -> Tensor:
            centred = (p.means - p.mean).double()
            if p.row_scale is not None:  # noise of each row its own
                centred = centred / p.row_scale.double()
            white = linalg.half_solve(factor, centred.reshape(-1, centred.shape[-1]).mT).mT.reshape(centred.shape)
            return white.permute(1, 2, 0) / len(centred) ** 0.5

        pool = departures(predictive)
        return cls(pool, departures(target), torch.eye(pool.shape[-1], dtype=pool.dtype, device=pool.device))

    def _covariances(self, rows: Tensor) -> Tensor:
        """Of the outputs of each row, (n, D, D)."""
        return (rows @ self.covariance) @ rows.mT

    def variance(self) -> Tensor:
        return self._covariances(self.pool).diagonal(dim1=-2, dim2=-1).sum(-1)

    def bald(self) -> Tensor:
        """log det(I + Var f) / 2, in nats."""
        return 0.5 * _logdet(_with_noise(self._covariances(self.pool)))

    def epig(self) -> Tensor:
        """Mean over target rows of −log det(I − V⁻¹ C V*⁻¹ Cᵀ) / 2, V and V* with noise."""
        white = [_whitened(rows, _with_noise(self._covariances(rows))) for rows in (self.pool, self.target)]
        at_pool = white[0] @ self.covariance  # (n, D, S)
        found = torch.zeros(len(at_pool), dtype=at_pool.dtype, device=at_pool.device)
        eye = torch.eye(at_pool.shape[1], dtype=at_pool.dtype, device=at_pool.device)
        for rows in white[1]:  # (D, S)
            correlation = at_pool @ rows.mT  # (n, D, D)
            found -= 0.5 * _logdet(eye - correlation @ correlation.mT)
        return found / len(white[1])

    def choose(self, row: int) -> None:
        f = self.pool[row]  # (D, S)
        through = f @ self.covariance
        factor = linalg.cholesky(_with_noise(through @ f.mT), "covariance of a label")
        half = linalg.half_solve(factor, through)
        self.covariance = self.covariance - half.mT @ half


def _with_noise(covariance: Tensor) -> Tensor:
    return covariance + torch.eye(covariance.shape[-1], dtype=covariance.dtype, device=covariance.device)


def _logdet(matrix: Tensor) -> Tensor:
    return linalg.logdet(linalg.cholesky(matrix, "covariance of labels"))


def _whitened(rows: Tensor, covariance: Tensor) -> Tensor:
    """Rows (n, D, S) times the inverse roots of their covariances (n, D, D)."""
    return linalg.half_solve(linalg.cholesky(covariance, "covariance of labels"), rows)
