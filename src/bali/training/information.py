"""What labels would tell, of a regression and of a classification.

A regression's outputs are jointly Gaussian over rows, and what they tell has a closed form. Of classes it is the mutual
information from the class probabilities under weight samples. Labels chosen before are not known. By the chain rule, what
the next one tells given them is the mean, over what they may be, of what it tells once they are: they are drawn from the
model, and each draw weighs the weight samples by its likelihood.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from bali.conjugate import linalg
from bali.predictive.mixtures import RegressionPredictive

# --- a regression -----------------------------------------------------------------------------------------------------


@dataclass
class GaussianInformation:
    """Outputs f_i = m_i + F_i u of D numbers, u a standard normal vector of length S.

    F's columns are the weight samples' departures from their mean, over √S. A label y_i = f_i + noise leaves u Gaussian with
    covariance P. Noise is white and of unit size: outputs were divided by its root.
    """

    pool: Tensor  # F, (n, D, S)
    target: Tensor  # (m, D, S)
    covariance: Tensor  # P, (S, S)
    places: Tensor | None = None  # of the target rows in the pool, (m,), if that is where they are from

    @classmethod
    def of(
        cls, predictive: RegressionPredictive, target: RegressionPredictive, places: Tensor | None = None
    ) -> GaussianInformation:
        noise = predictive.noise.double().mean(0)
        factor = linalg.cholesky(noise, "predictive noise")

        def departures(p: RegressionPredictive) -> Tensor:
            centred = (p.means - p.mean).double()
            if p.row_scale is not None:  # noise of each row its own
                centred = centred / p.row_scale.double()
            white = linalg.half_solve(factor, centred.reshape(-1, centred.shape[-1]).mT).mT.reshape(centred.shape)
            return white.permute(1, 2, 0) / len(centred) ** 0.5

        pool = departures(predictive)
        return cls(pool, departures(target), torch.eye(pool.shape[-1], dtype=pool.dtype, device=pool.device), places)

    def _covariances(self, rows: Tensor) -> Tensor:
        """Of the outputs of each row, (n, D, D)."""
        return (rows @ self.covariance) @ rows.mT

    def variance(self) -> Tensor:
        return self._covariances(self.pool).diagonal(dim1=-2, dim2=-1).sum(-1)

    def bald(self) -> Tensor:
        """log det(I + Var f) / 2, in nats."""
        return 0.5 * _logdet(_with_noise(self._covariances(self.pool)))

    def epig(self) -> Tensor:
        """Mean over target rows of −log det(I − V⁻¹ C V*⁻¹ Cᵀ) / 2, V and V* with noise.

        What a row tells about itself is left out: almost without noise it is more than all that it tells about others.
        """
        white = [_whitened(rows, _with_noise(self._covariances(rows))) for rows in (self.pool, self.target)]
        at_pool = white[0] @ self.covariance  # (n, D, S)
        found = torch.zeros(len(at_pool), dtype=at_pool.dtype, device=at_pool.device)
        eye = torch.eye(at_pool.shape[1], dtype=at_pool.dtype, device=at_pool.device)
        for number, rows in enumerate(white[1]):  # (D, S)
            correlation = at_pool @ rows.mT  # (n, D, D)
            told = -0.5 * _logdet(eye - correlation @ correlation.mT)
            if self.places is not None:
                told[self.places[number]] = 0.0
            found += told
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


# --- classes ----------------------------------------------------------------------------------------------------------


#: Draws of the labels chosen before; for "epig", whose cost is that of rows times target rows, fewer.
_DRAWS, _DRAWS_EPIG = 128, 8
#: Numbers of a product at once.
_AT_ONCE = 2**24


class ClassInformation:
    def __init__(self, pool: Tensor, target: Tensor, generator: torch.Generator, places: Tensor | None = None) -> None:
        self.pool, self.target, self._places = pool, target, places  # (S, n, C), (S, m, C), (m,)
        n_samples = len(pool)
        self._entropies = _entropy(pool)  # (S, n)
        # Whose weight sample each draw is of, and how likely its labels are under all samples.
        self._truth = torch.arange(_DRAWS) % n_samples
        self._truth = self._truth[torch.randperm(_DRAWS, generator=generator)].to(pool.device)
        self._log_weights = torch.zeros(_DRAWS, n_samples, dtype=pool.dtype, device=pool.device)
        self._generator, self._chosen = generator, 0

    def variance(self) -> Tensor:
        raise ValueError("method 'variance' is for numbers; for classes take 'epig', 'batchbald' or 'bald'")

    def _weights(self, most: int) -> Tensor:
        """(K, S), each summing to one: a single one before anything is chosen."""
        return self._log_weights[: most if self._chosen else 1].softmax(-1)

    def bald(self) -> Tensor:
        weights = self._weights(_DRAWS)
        s, n, c = self.pool.shape
        total = torch.zeros(n, dtype=self.pool.dtype, device=self.pool.device)
        at_once = max(1, _AT_ONCE // (n * c))
        for start in range(0, len(weights), at_once):
            some = weights[start : start + at_once]
            mixed = (some @ self.pool.reshape(s, -1)).reshape(len(some), n, c)
            total += (_entropy(mixed) - some @ self._entropies).sum(0)
        return total / len(weights)

    def epig(self) -> Tensor:
        weights = self._weights(_DRAWS_EPIG)
        (s, n, c), m = self.pool.shape, self.target.shape[1]
        target = self.target.reshape(s, -1)  # (S, m C)
        at_once = max(1, _AT_ONCE // (m * c * c))
        total = torch.zeros(n, dtype=self.pool.dtype, device=self.pool.device)
        for weight in weights:
            weighted = target * weight[:, None]
            of_target = _entropy(weighted.sum(0).reshape(m, c))
            for start in range(0, n, at_once):
                part = self.pool[:, start : start + at_once]
                rows = part.shape[1]
                joint = (part.reshape(s, -1).mT @ weighted).reshape(rows, c, m, c)
                of_both = torch.special.entr(joint).sum((1, 3))
                mixed = torch.einsum("s,snc->nc", weight, part)
                told = _entropy(mixed)[:, None] + of_target - of_both  # (rows, m)
                if self._places is not None:  # nothing about themselves
                    itself = torch.arange(start, start + rows, device=told.device)[:, None] == self._places
                    told = told.masked_fill(itself, 0.0)
                total[start : start + at_once] += told.mean(1)
        return total / len(weights)

    def choose(self, row: int) -> None:
        p = self.pool[:, row]  # (S, C)
        labels = torch.multinomial(p[self._truth].cpu(), 1, generator=self._generator)[:, 0].to(p.device)
        tiny = torch.finfo(p.dtype).tiny
        self._log_weights = self._log_weights + p.clamp_min(tiny).log().mT[labels]
        self._chosen += 1


def _entropy(p: Tensor) -> Tensor:
    return torch.special.entr(p).sum(-1)
