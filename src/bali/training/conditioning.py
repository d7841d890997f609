"""One more observation: the output layer of a regression as the exact Bayesian regression that it is.

To first order in the weights of the other layers, outputs are z(x) + J(x) δ + φ(x) w with w the output layer's departure
from its mean. Given δ, an observation is a row of a linear regression of w, and changes its posterior and that of the noise
in closed form (`conjugate/regressions.py`). Each of S samples of δ has a regression of its own, with inputs φ(x) in common;
the other layers stay as they were. Along the eigenvectors of the noise, outputs are regressions side by side.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from bali.conjugate import linalg
from bali.conjugate.regressions import Regressions
from bali.predictive.mixtures import RegressionPredictive


class Rows(NamedTuple):
    """What the rest of the network makes of n rows, for K members and S samples of each."""

    features: Tensor  # φ, (K, n, D_x)
    outputs: Tensor  # z + J δ, (K, S, n, D), standardised
    scale: Tensor | None  # of each row's noise, (n, D)


@dataclass(frozen=True)
class Body:
    """All that stays when rows come."""

    rows: Callable[[Any], Rows]  # differentiable where x is
    directions: Tensor  # V, (D, D): noise is independent along its columns
    shift: Tensor  # y = shift + scale · u, (D,)
    scale: Tensor
    tails: float | None  # degrees of freedom of a single observation's noise, of which regressions know the variance
    least: Tensor  # the prior's part of Λ, (K, 1, D, D_x, D_x)
    seed: int


@dataclass(frozen=True)
class Conditioned:
    """A regression whose output layer takes in rows exactly. Values: every `condition` gives a new one."""

    body: Body
    start: Regressions  # before any rows beyond the training's
    now: Regressions  # (K, S, D): members, samples, directions
    n_rows: int = 0  # taken in so far
    has_forgotten: bool = False

    # --- rows in ------------------------------------------------------------------------------------------------

    def condition(self, x: Any, y: Any, forget: float = 0.0, times: Any = None) -> Conditioned:
        """With these rows added, as if the output layer had been regressed on them too.

        `forget` is the share of all rows before them, the training's included, that fades; `times` counts each row so many
        times.
        """
        if not 0.0 <= forget < 1.0:
            raise ValueError(f"forget must be at least 0 and below 1, got {forget}")
        with torch.no_grad():
            rows = self.body.rows(x)
            phi, residual = rows.features.double(), self._residual(y, rows)
            counts = phi.new_ones(phi.shape[1]) if times is None else torch.as_tensor(times).to(phi)
            weight = counts[:, None].expand_as(residual[0, 0])
            weight = weight if rows.scale is None else weight / rows.scale.double().square()
            weighted = phi.unsqueeze(1) * weight.mT[None, :, :, None]  # (K, D, n, D_x)
            old = self.now.faded(forget, self.body.least) if forget else self.now
            now = old.plus_rows(
                (weighted.mT @ phi.unsqueeze(1)).unsqueeze(1),
                torch.einsum("kdnx,ksnd->ksdx", weighted, residual),
                torch.einsum("nd,ksnd->ksd", weight, residual.square()),
                float(counts.sum()),
            )
        forgotten = self.has_forgotten or forget > 0
        return replace(self, now=now, n_rows=self.n_rows + phi.shape[1], has_forgotten=forgotten)

    def merge(self, other: Conditioned) -> Conditioned:
        """What both have taken in, each its own rows, from one start: the same as one that was given all of them."""
        if not other.start.equals(self.start):
            raise ValueError(
                "only what was conditioned from one start can be merged: the rest of the network must be the same"
            )
        if self.has_forgotten or other.has_forgotten:
            raise ValueError("what has forgotten rows cannot be merged: it is not known which ones they have in common")
        return replace(self, now=self.now.plus(other.now, self.start), n_rows=self.n_rows + other.n_rows)

    def fantasise(self, x: Any, n: int = 16) -> list[Conditioned]:
        """n futures: each with observations at x that the model itself thinks likely, taken in."""
        draws = self.predict(x).sample(n, self._generator())
        return [self.condition(x, y) for y in draws]

    def _residual(self, y: Any, rows: Rows) -> Tensor:
        """Observations less what the rest of the network says, along the directions of the noise, (K, S, n, D)."""
        body, shape = self.body, rows.outputs.shape[-2:]
        values = torch.as_tensor(y).detach().to(body.shift)
        values = values[:, None] if values.dim() == 1 else values
        if values.shape != shape:
            raise ValueError(f"y has shape {tuple(values.shape)}, for these rows it should be {tuple(shape)}")
        if not bool(torch.isfinite(values).all()):
            raise ValueError("y has NaN or infinite values; remove those rows")
        return ((values - body.shift) / body.scale - rows.outputs.double()) @ body.directions

    # --- predictions --------------------------------------------------------------------------------------------

    def predict(self, x: Any, n_samples: int = 256) -> RegressionPredictive:
        """New observations at x, in the units of the targets; the same weight samples serve all rows."""
        rows, body = self.body.rows(x), self.body
        k, s = self.now.noise.shape[:2]
        weights, variances = self.now.draw(-(-n_samples // (k * s)), self._generator())  # (E, K, S, D, ...)
        moved = torch.einsum("knx,eksdx->eksnd", rows.features.double(), weights) @ body.directions.mT
        means = (rows.outputs.double() + moved).flatten(0, 2)
        noise = (body.directions * variances.flatten(0, 2).unsqueeze(-2)) @ body.directions.mT
        if body.tails is not None:
            noise = noise * ((body.tails - 2.0) / body.tails)
        return RegressionPredictive(means, noise, None, body.tails, rows.scale).affine(body.scale, body.shift)

    def joint(self, rows: Rows) -> tuple[Tensor, Tensor]:
        """Mean (..., q, D) and covariance (..., q D, q D) of the outputs, without noise, in the units of the targets.

        Features are (K, ..., q, D_x) and outputs (K, S, ..., q, D): batches of q rows. A closed form, but for the mean over
        the S samples of the other layers' weights.
        """
        body, phi, now = self.body, rows.features.double(), self.now
        (q, d), batch = rows.outputs.shape[-2:], phi.shape[1:-2]
        turned = torch.einsum("k...x,ksdx->ks...d", phi, now.mean)
        means = (rows.outputs.double() + turned @ body.directions.mT) * body.scale + body.shift
        flat = phi.reshape(len(phi), -1, phi.shape[-1]).mT  # (K, D_x, B q)
        back = body.directions * body.scale[:, None]  # columns are directions, in units
        within = phi.new_zeros(flat.shape[-1] // q, q, d, q, d)
        for number, column in enumerate(back.mT):
            half = linalg.half_solve(now.factor[:, 0, number], flat)
            half = half.reshape(*half.shape[:2], -1, q)  # (K, D_x, B, q)
            variance = now.expected_noise[:, :, number].mean(1) / len(phi)  # (K,)
            doubt = torch.einsum("kxbi,kxbj,k->bij", half, half, variance)
            within = within + torch.einsum("bij,e,f->biejf", doubt, column, column)
        centred = (means - means.mean((0, 1))).flatten(-2).flatten(0, 1)  # (K S, ..., q D)
        between = torch.einsum("s...i,s...j->...ij", centred, centred) / len(centred)
        return means.mean((0, 1)), within.reshape(*batch, q * d, q * d) + between

    @functools.cached_property
    def noise(self) -> Tensor:
        """Expected covariance of an observation's noise, (D, D), in the units of the targets."""
        body = self.body
        variance = self.now.expected_noise.mean((0, 1))
        return (body.directions * variance) @ body.directions.mT * body.scale[:, None] * body.scale

    def _generator(self) -> torch.Generator:
        return torch.Generator(device=self.now.drive.device).manual_seed(self.body.seed)


def begin(body: Body, curvature: Tensor, n_samples: int, noise: Tensor, noise_rows: float) -> Conditioned:
    """Where training left the output layer: Λ without its prior (K, D, D_x, D_x), and the noise of each direction (D,)."""
    precision = body.least + curvature.unsqueeze(1)
    start = Regressions.known(precision, noise.expand(len(curvature), n_samples, -1), noise_rows)
    return Conditioned(body, start, start)
