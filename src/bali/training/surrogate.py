"""A regression for tens or hundreds of rows: a hidden layer of waves with drawn weights, an output layer inferred exactly.

So few rows can neither train hidden weights nor be spared to be held out. But given the hidden weights the rows' evidence,
with all weights of the output layer integrated out, is a closed form, and sets what little there is to set:

    f(x) = Σ_h a_h cos(v_hᵀ s∘x) + b_h sin(v_hᵀ s∘x) + cᵀx + e,   y = f(x) + ε

Directions v_h are drawn from a standard normal, some of all columns and some of a single one, as what columns do by
themselves can be told from fewer rows than what they do together. Scales s of the columns, the variances of both kinds of
(a, b) and of c, and that of ε are where evidence times a weak prior is largest, by gradient. Members differ in their
directions and in where the search began, and count by their evidence. Of ever more waves this would be a Gaussian process
with squared-exponential kernels and a linear trend; as it is, rows are added in closed form, draws are functions with fixed
weights, and the cost of a prediction does not grow with the rows.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from bali.conjugate import linalg
from bali.training.adam import Adam
from bali.training.conditioning import Body, Conditioned, Rows, begin

#: Waves of a member, each a cosine and a sine: of all columns, and of single ones, of which every column has some.
_WAVES, _ALONE, _LEAST_ALONE = 256, 128, 8
#: Members that are tried, and parts into which the mixture is divided among them by their evidence.
_TRIED, _PARTS = 8, 4
#: Of the search for scales and variances, by Adam with ever smaller steps.
_STEPS, _RATE = 120, 0.1
#: The evidence takes the cube of the rows, at every step.
MOST_ROWS = 1000
#: Prior of the logarithms (mean, standard deviation), of standardised targets: a column's scale, times the root of their
#: number (waves of many columns are no shorter than those of few); deviations of waves, of the trend and of the noise.
_COLUMN, _WAVE, _TREND, _NOISE = (0.0, 1.0), (0.0, 0.7), (-1.0, 1.0), (-3.5, 1.0)
#: Variance of the noise of standardised targets, at the least.
_LEAST_NOISE = 1e-6


def surrogate(x: Any, y: Any, *, bounds: Any = None, seed: int = 0) -> Conditioned:
    """A model of few rows, as for the optimisation of a function that costs much; about a second, nothing to set.

    It takes in more rows in closed form (`condition`), and is what `bali.BoTorchModel` and `bali.active.query` take.
    From some hundreds of rows on, `BALIRegressor` and `bali.fit` learn more from them.

    Parameters
    ----------
    x
        Rows of numbers, (n, d).
    y
        Observations, (n,) or (n, m).
    bounds
        The least and the largest value of each column, (2, d); by default those that the rows have.
    """
    rows, targets = _checked(x, "x"), _checked(y, "y")
    if len(rows) != len(targets):
        raise ValueError(f"x has {len(rows)} rows and y has {len(targets)}; there must be as many")
    if not 2 <= len(rows) <= MOST_ROWS:
        raise ValueError(
            f"a surrogate is of 2 to {MOST_ROWS:,} rows, got {len(rows)}; for more take BALIRegressor or bali.fit"
        )
    low, high = _range(rows, bounds)
    shift, scale = targets.mean(0), targets.std(0)
    scale = torch.where(scale > 1e-12 * shift.abs().clamp_min(1e-300), scale, torch.ones_like(scale))
    standard = (targets - shift) / scale
    variances, directions = torch.linalg.eigh(standard.mT @ standard / len(standard))
    # Directions along which targets hardly differ are as good as noise.
    spread = variances.clamp_min(_LEAST_NOISE).sqrt()
    waves = Waves.drawn(_TRIED, (low + high) / 2, (high - low) / math.sqrt(12.0), seed)
    found = _most_likely(waves, rows, standard @ directions / spread, seed)
    waves, found = waves.members(found.chosen), found.members(found.chosen)
    noise = found.noise.square() + _LEAST_NOISE  # (K, D)
    prior = torch.cat([found.sizes[..., part, None].expand(-1, -1, n) for part, n in enumerate(waves.parts)], -1)
    precision = noise[..., None] / torch.cat([prior.square(), torch.ones_like(prior[..., :1])], -1)
    least = torch.diag_embed(precision).unsqueeze(1)  # (K, 1, D, D_x, D_x)
    body = Body(WaveRows(waves, found.columns, len(shift)), directions, shift, scale, None, least, seed)
    start = begin(body, torch.zeros_like(least[:, 0]), 1, (noise * spread.square()).unsqueeze(1), float(len(rows)))
    return start.condition(rows, targets)


@dataclass(frozen=True)
class Waves:
    """Directions of K members, for columns about their middle in units of their deviation."""

    together: Tensor  # (K, d, H)
    alone: Tensor  # (K, d, H'), each of one column
    middle: Tensor  # (d,)
    unit: Tensor

    @classmethod
    def drawn(cls, k: int, middle: Tensor, unit: Tensor, seed: int) -> Waves:
        """Evenly spread ones, which stand for more of them than independent draws do."""
        d = len(middle)
        engine = torch.quasirandom.SobolEngine(d, scramble=True, seed=seed)  # type: ignore[no-untyped-call]
        even = engine.draw(k * _WAVES, dtype=torch.float64).clamp(1e-9, 1.0 - 1e-9)
        drawn = torch.special.ndtri(even).reshape(k, _WAVES, d)  # points that follow each other are even among themselves
        each = 0 if d == 1 else max(_LEAST_ALONE, _ALONE // d)
        shift = torch.rand(k, d, 1, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
        lengths = torch.special.ndtri(0.5 + 0.5 * (torch.arange(each) + shift) / max(each, 1))  # (K, d, H' / d)
        # Of all columns, scales are smaller by the root of their number (see the prior).
        alone = torch.einsum("kih,ij->kijh", math.sqrt(d) * lengths, torch.eye(d, dtype=torch.float64)).mT.flatten(1, 2).mT
        return cls(drawn.mT.contiguous(), alone.contiguous(), middle, unit)

    @property
    def parts(self) -> tuple[int, int, int]:
        """Features of all columns, of each by itself, and those of the trend; one more, the last, is a one."""
        return 2 * self.together.shape[-1], 2 * self.alone.shape[-1], len(self.middle)

    def members(self, chosen: Tensor) -> Waves:
        return Waves(self.together[chosen], self.alone[chosen], self.middle, self.unit)

    def features(self, x: Tensor, columns: Tensor) -> Tensor:
        """Of rows (n, d) with scales (K, d) of the columns, (K, n, ·): squares of each part sum to about one."""
        standard, found = (x - self.middle) / self.unit, list[Tensor]()
        for directions in (self.together, self.alone):
            angles = (standard * columns.unsqueeze(1)) @ directions
            found += [part / math.sqrt(max(angles.shape[-1], 1)) for part in (angles.cos(), angles.sin())]
        rest = torch.cat([standard / math.sqrt(x.shape[-1]), torch.ones_like(standard[:, :1])], -1)
        return torch.cat([*found, rest.expand(len(columns), *rest.shape)], -1)


class WaveRows:
    """x → rows of the regressions of all members' output layers."""

    def __init__(self, waves: Waves, columns: Tensor, n_outputs: int) -> None:
        self._waves, self._columns, self._n_outputs = waves, columns, n_outputs

    def __call__(self, x: Any) -> Rows:
        rows = x.to(self._columns) if isinstance(x, Tensor) and x.requires_grad else _checked(x, "x")
        if rows.shape[-1] != self._columns.shape[-1]:
            raise ValueError(f"x has {rows.shape[-1]} columns, and the model was made of {self._columns.shape[-1]}")
        features = self._waves.features(rows, self._columns)
        return Rows(features, features.new_zeros(len(features), 1, len(rows), self._n_outputs), None)


class Found(NamedTuple):
    """Of K members and D directions of the targets, as standard deviations."""

    columns: Tensor  # s, (K, d)
    sizes: Tensor  # of waves of all columns and of single ones, and of the trend, (K, D, 3)
    noise: Tensor  # (K, D)
    evidence: Tensor  # (K,), in nats, with the prior

    def members(self, chosen: Tensor) -> Found:
        return Found(*(part[chosen] for part in self))

    @property
    def chosen(self) -> Tensor:
        """Members by their shares of the evidence in so many parts; a member whose parts are two comes twice."""
        counts, shares = torch.zeros(len(self.evidence), dtype=torch.int64), self.evidence.softmax(0)
        for _ in range(_PARTS):  # each part goes to whom the most is missing
            counts[int((_PARTS * shares - counts).argmax())] += 1
        counts = counts // math.gcd(*counts.tolist())
        return torch.repeat_interleave(torch.arange(len(counts)), counts)


def _most_likely(waves: Waves, x: Tensor, targets: Tensor, seed: int) -> Found:
    """Where evidence times prior is largest, for targets (n, D) along directions in which they are uncorrelated."""
    k, d, n_targets = len(waves.together), x.shape[1], targets.shape[1]
    own = [_WAVE, _WAVE, _TREND] * n_targets + [_NOISE] * n_targets
    priors = torch.tensor([(_COLUMN[0] - 0.5 * math.log(d), _COLUMN[1])] * d + own, dtype=torch.float64)
    centre, width = priors.mT
    drawn = torch.randn(k, len(priors), generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    logs = centre + 0.5 * width * drawn

    def found(logs: Tensor) -> Found:
        columns, sizes, noise = torch.split(logs.exp(), [d, 3 * n_targets, n_targets], -1)
        sizes = sizes.reshape(*sizes.shape[:-1], n_targets, 3)
        prior = -0.5 * ((logs - centre) / width).square().sum(-1)
        evidence = _evidence(waves.features(x, columns), waves.parts, targets, sizes, noise)
        return Found(columns, sizes, noise, prior + evidence)

    adam = Adam(logs, _RATE, (0.9, 0.99))
    for step in range(_STEPS):
        with torch.enable_grad():
            free = logs.requires_grad_()
            gradient = torch.autograd.grad(found(free).evidence.sum(), free)[0]
        share = max(0.02, 0.5 * (1.0 + math.cos(math.pi * step / _STEPS)))
        logs = logs.detach() + adam.step(gradient, share)
    with torch.no_grad():
        return found(logs)


def _evidence(features: Tensor, parts: Sequence[int], targets: Tensor, sizes: Tensor, noise: Tensor) -> Tensor:
    """log p(targets) (K,) up to a constant, all weights of the output layer integrated out."""
    products = [part @ part.mT for part in torch.split(features[..., :-1], list(parts), -1)]  # (K, n, n)
    covariance = 1.0 + torch.einsum("kdp,kpij->kdij", sizes.square(), torch.stack(products, 1))
    covariance = covariance + torch.diag_embed((noise.square() + _LEAST_NOISE)[..., None].expand(covariance.shape[:-1]))
    factor = linalg.cholesky(covariance, "covariance of the observations")
    white = linalg.half_solve(factor, targets.mT.unsqueeze(-1).expand(len(factor), -1, -1, -1))
    return -0.5 * (white.square().sum((-1, -2)) + linalg.logdet(factor)).sum(-1)


def _checked(values: Any, name: str) -> Tensor:
    found = torch.as_tensor(values).detach().to("cpu", torch.float64)
    found = found[:, None] if name == "y" and found.dim() == 1 else found
    if found.dim() != 2 or found.shape[1] < 1:
        raise ValueError(f"{name} must have rows and columns, got shape {tuple(found.shape)}")
    if not bool(torch.isfinite(found).all()):
        raise ValueError(f"{name} has NaN or infinite values; remove those rows")
    return found


def _range(x: Tensor, bounds: Any) -> tuple[Tensor, Tensor]:
    if bounds is None:
        low, high = x.amin(0), x.amax(0)
        return low, torch.where(high > low, high, low + 1.0)  # a column that does not vary tells nothing
    given = torch.as_tensor(bounds).to("cpu", torch.float64)
    if given.shape != (2, x.shape[1]) or not bool((given[0] < given[1]).all()):
        raise ValueError(f"bounds must be the least and the largest value of {x.shape[1]} columns, shape (2, {x.shape[1]})")
    return given[0], given[1]
