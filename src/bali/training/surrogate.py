"""A regression for tens or hundreds of rows: a hidden layer of waves with drawn weights, an output layer inferred exactly.

So few rows can neither train hidden weights nor be spared to be held out. But given the hidden weights the rows' evidence,
with all weights of the output layer integrated out, is a closed form, and sets what little there is to set:

    f(x) = Σ_h a_h cos(v_hᵀ s∘x) + b_h sin(v_hᵀ s∘x) + cᵀx + qᵀ(x∘x) + e,   y = f(x) + ε

Directions v_h are drawn from a standard normal, some of all columns and some of a single one, as what columns do by
themselves can be told from fewer rows than what they do together. Scales s of the columns, the variances of both kinds of
(a, b), of c and of q, and that of ε are drawn about where evidence times a weak prior is largest (`surrogate_scales.py`).
Members differ in their directions and in where the search began, and count by their evidence. Of ever more waves this would
be a Gaussian process with squared-exponential kernels and a parabola as trend; as it is, rows are added in closed form,
draws are functions with fixed weights, and the cost of a prediction does not grow with the rows.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from bali.training.conditioning import Body, Conditioned, begin
from bali.training.surrogate_scales import LEAST_NOISE, drawn_scales
from bali.training.waves import WaveRows, Waves, checked_rows

#: Members that are tried.
_TRIED = 8
#: The evidence takes the cube of the rows, at every step.
MOST_ROWS = 1000


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
    rows, targets = checked_rows(x, "x"), checked_rows(y, "y")
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
    spread = variances.clamp_min(LEAST_NOISE).sqrt()
    waves = Waves.drawn(_TRIED, (low + high) / 2, (high - low) / math.sqrt(12.0), seed)
    waves, scales = drawn_scales(waves, rows, standard @ directions / spread, seed)
    noise = scales.noise.square() + LEAST_NOISE  # (K, D)
    prior = torch.cat([scales.sizes[..., part, None].expand(-1, -1, n) for part, n in enumerate(waves.parts)], -1)
    precision = noise[..., None] / torch.cat([prior.square(), torch.ones_like(prior[..., :1])], -1)
    least = torch.diag_embed(precision).unsqueeze(1)  # (K, 1, D, D_x, D_x)
    body = Body(WaveRows(waves, scales.columns, len(shift)), directions, shift, scale, None, least, seed)
    start = begin(body, torch.zeros_like(least[:, 0]), 1, (noise * spread.square()).unsqueeze(1), float(len(rows)))
    return start.condition(rows, targets)


def _range(x: Tensor, bounds: Any) -> tuple[Tensor, Tensor]:
    if bounds is None:
        low, high = x.amin(0), x.amax(0)
        return low, torch.where(high > low, high, low + 1.0)  # a column that does not vary tells nothing
    given = torch.as_tensor(bounds).to("cpu", torch.float64)
    if given.shape != (2, x.shape[1]) or not bool((given[0] < given[1]).all()):
        raise ValueError(f"bounds must be the least and the largest value of {x.shape[1]} columns, shape (2, {x.shape[1]})")
    return given[0], given[1]
