"""What the rows of a surrogate say of its scales: where evidence times prior is largest, and how surely it is there.

Scales of the columns are alike, but for some: their logarithms have a common level, and about that a distribution with heavy
tails. So few rows cannot tell each column's scale by itself, and a column that tells nothing is one that differs much.
What is drawn about the most likely scales has the curvature there (Laplace's approximation): parts of a mixture differ by
what the rows leave open.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from bali.conjugate import linalg
from bali.training.adam import Adam
from bali.training.waves import Waves

#: Of the search, by Adam with ever smaller steps.
_STEPS, _RATE = 120, 0.1
#: Prior of the logarithms (mean, standard deviation), of standardised targets: the level of the columns' scales, times the
#: root of their number (waves of many columns are no shorter than those of few); deviations of waves, of both parts of the
#: trend and of the noise.
_LEVEL, _WAVE, _TREND, _NOISE = (0.0, 1.0), (0.0, 0.7), (-1.0, 1.0), (-3.0, 2.0)
#: Of Student's distribution of a column's logarithm about the level: scale and degrees of freedom.
_OWN, _TAILS = 0.3, 3.0
#: Variance of the noise of standardised targets, at the least.
LEAST_NOISE = 1e-6
#: Curvature of the logarithms along which rows say no more, at the least.
_LEAST_CURVATURE = 0.5
#: Parts into which the mixture is divided among members by their evidence, a draw for each.
_PARTS = 4


class Scales(NamedTuple):
    """Of K members and D directions of the targets, as standard deviations."""

    columns: Tensor  # s, (K, d)
    sizes: Tensor  # of waves of all columns and of single ones, of columns and of their squares, (K, D, 4)
    noise: Tensor  # (K, D)


@dataclass(frozen=True)
class Evidence:
    """Of scales, given waves and targets (n, D) along directions in which they are uncorrelated."""

    waves: Waves
    x: Tensor  # (n, d)
    targets: Tensor

    def prior(self) -> tuple[Tensor, Tensor]:
        """Mean and deviation of all logarithms: columns, sizes, noise, level."""
        d, n_targets = self.x.shape[1], self.targets.shape[1]
        level = (_LEVEL[0] - 0.5 * math.log(d), _LEVEL[1])
        own = [_WAVE, _WAVE, _TREND, _TREND] * n_targets + [_NOISE] * n_targets
        mean, deviation = torch.tensor([level] * d + own + [level], dtype=torch.float64).mT
        return mean, deviation

    def scales(self, logs: Tensor) -> Scales:
        d, n_targets = self.x.shape[1], self.targets.shape[1]
        columns, sizes, noise = torch.split(logs[:, :-1].exp(), [d, 4 * n_targets, n_targets], -1)
        return Scales(columns, sizes.reshape(len(logs), n_targets, 4), noise)

    def log_density(self, logs: Tensor) -> Tensor:
        """With the prior, up to a constant, (K,) of (K, P)."""
        d, scales, (mean, deviation) = self.x.shape[1], self.scales(logs), self.prior()
        apart = (logs[:, :d] - logs[:, -1:]) / _OWN
        prior = -0.5 * (_TAILS + 1.0) * torch.log1p(apart.square() / _TAILS).sum(-1)
        prior = prior - 0.5 * ((logs - mean) / deviation)[:, d:].square().sum(-1)
        features = self.waves.features(self.x, scales.columns)
        return prior + log_evidence(features, self.waves.parts, self.targets, scales.sizes, scales.noise)

    def members(self, chosen: Tensor) -> Evidence:
        return Evidence(self.waves.members(chosen), self.x, self.targets)

    def most_likely(self, seed: int) -> Tensor:
        """Logarithms (K, P) where each member's density is largest, as far as a search gets."""
        mean, deviation = self.prior()
        shape = (len(self.waves.together), len(mean))
        drawn = torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
        logs, adam = mean + 0.5 * deviation * drawn, Adam(drawn, _RATE, (0.9, 0.99))
        for step in range(_STEPS):
            with torch.enable_grad():
                free = logs.requires_grad_()
                gradient = torch.autograd.grad(self.log_density(free).sum(), free)[0]
            share = max(0.02, 0.5 * (1.0 + math.cos(math.pi * step / _STEPS)))
            logs = logs.detach() + adam.step(gradient, share)
        return logs

    def curvature(self, logs: Tensor) -> Tensor:
        """Of minus the logarithm of each member's density, (K, P, P)."""
        with torch.enable_grad():
            logs = logs.detach().requires_grad_()
            (slope,) = torch.autograd.grad(self.log_density(logs).sum(), logs, create_graph=True)
            rows = [torch.autograd.grad(s, logs, retain_graph=True)[0] for s in slope.sum(0)]
        return -linalg.symmetric(torch.stack(rows, 1))


def drawn_scales(waves: Waves, x: Tensor, targets: Tensor, seed: int) -> tuple[Waves, Scales]:
    """Members by their shares of the evidence, one of several parts each time with other scales."""
    evidence = Evidence(waves, x, targets)
    logs = evidence.most_likely(seed)
    with torch.no_grad():
        chosen = shared_out(evidence.log_density(logs).softmax(0))
    members, place = torch.unique(chosen, return_inverse=True)
    curvature = evidence.members(members).curvature(logs[members])
    values, vectors = torch.linalg.eigh(curvature)
    engine = torch.quasirandom.SobolEngine(logs.shape[1], scramble=True, seed=seed)  # type: ignore[no-untyped-call]
    normal = torch.special.ndtri(engine.draw(len(chosen), dtype=torch.float64).clamp(1e-9, 1.0 - 1e-9))
    moved = vectors[place] @ (normal / values.clamp_min(_LEAST_CURVATURE)[place].sqrt()).unsqueeze(-1)
    found = evidence.members(chosen)
    return found.waves, found.scales(logs[chosen] + moved.squeeze(-1))


def shared_out(shares: Tensor) -> Tensor:
    """Numbers of members, one for each part: each part goes to whom the most is missing."""
    counts = torch.zeros(len(shares), dtype=torch.int64)
    for _ in range(_PARTS):
        counts[int((_PARTS * shares - counts).argmax())] += 1
    return torch.repeat_interleave(torch.arange(len(counts)), counts)


def log_evidence(features: Tensor, parts: Sequence[int], targets: Tensor, sizes: Tensor, noise: Tensor) -> Tensor:
    """log p(targets) (K,) up to a constant, all weights of the output layer integrated out."""
    products = [part @ part.mT for part in torch.split(features[..., :-1], list(parts), -1)]  # (K, n, n)
    covariance = 1.0 + torch.einsum("kdp,kpij->kdij", sizes.square(), torch.stack(products, 1))
    covariance = covariance + torch.diag_embed((noise.square() + LEAST_NOISE)[..., None].expand(covariance.shape[:-1]))
    factor = linalg.cholesky(covariance, "covariance of the observations")
    white = linalg.half_solve(factor, targets.mT.unsqueeze(-1).expand(len(factor), -1, -1, -1))
    return -0.5 * (white.square().sum((-1, -2)) + linalg.logdet(factor)).sum(-1)
